"""File formats, read from their headers: GGUF, safetensors, JSON configs. They know bytes and fields, and no model.

The readers take a `places` source and give tensors with shapes, metadata and typed values; `facts` says what those mean.
"""
