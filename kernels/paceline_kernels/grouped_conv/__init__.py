"""Grouped dynamic causal convolution over the rows of a draft block."""

from paceline_kernels.grouped_conv.reference import grouped_conv

__all__ = ["grouped_conv"]
