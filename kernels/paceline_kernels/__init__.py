"""Kernels, one folder an operation: its face picks `reference.py` (plain torch) or `kernel.py` (Triton), see `backend`.

It knows nothing of the engine.
"""
