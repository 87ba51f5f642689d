"""Everything that speaks HTTP: the application, its routes and what happens around each, keys, probes, errors as responses.

`lifecycle` runs the application. Nothing here starts a process or knows how text becomes tokens.
"""
