"""The way to the API server and to pods, and the memory of what was heard. Decides nothing."""
