"""The link to the engine: its process, started and watched, and the client that sends requests and hands out answers.

`lifecycle` starts it and `service` shares it. It knows messages and sockets, no HTTP and no text.
"""
