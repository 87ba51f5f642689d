"""OpenAI's API as values: bytes to a checked body, a body to a job, a job's tokens to JSON, whole or in chunks.

The routes of `http` come through here. It knows the tokenizer and the client of the engine, and no socket of a client.
"""
