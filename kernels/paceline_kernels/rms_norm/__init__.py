"""Root-mean-square normalisation over the last dimension. Norm layers call it, and references of fused operations."""

from paceline_kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
