"""Keys and values of all draft layers from context rows, in tiles of one shape.

The draft's context rings call it. It knows no ring and no request.
"""

from paceline_kernels.context_rows.reference import TILE_ROWS, ContextProjection, context_keys_values

__all__ = ["TILE_ROWS", "ContextProjection", "context_keys_values"]
