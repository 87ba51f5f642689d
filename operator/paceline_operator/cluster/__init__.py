"""The way to the API server and to pods, and the memory of what they said. This room decides nothing."""
