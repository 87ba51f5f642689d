"""Root-mean-square normalisation over the last dimension."""

from paceline_kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
