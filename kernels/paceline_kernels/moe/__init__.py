"""Linear layers whose weights differ by group of rows: the experts of a mixture."""

from paceline_kernels.moe.reference import grouped_linear

__all__ = ["grouped_linear"]
