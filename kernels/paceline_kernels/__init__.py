"""Kernels, one folder an operation: `reference.py` (plain torch) beside `kernel.py` (Triton). Knows nothing of the engine."""
