"""Non-causal window attention of a draft block over a ring of context keys and values, and over itself."""

from paceline_kernels.window_attention.reference import ring_positions, window_attention

__all__ = ["ring_positions", "window_attention"]
