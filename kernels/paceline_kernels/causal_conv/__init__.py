"""Depthwise causal convolution with a recurrent state of its last inputs, and a journal of a verify's inputs."""

from paceline_kernels.causal_conv.reference import prefill_conv, replay_conv, verify_conv

__all__ = ["prefill_conv", "replay_conv", "verify_conv"]
