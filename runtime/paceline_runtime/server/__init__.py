"""The OpenAI-compatible HTTP server. It tokenizes and makes text; tokens come from the engine process. No torch."""
