"""Reading an array once and keeping next to nothing: the measure of how fast weights can be streamed."""

from paceline_kernels.stream_read.reference import stream_read

__all__ = ["stream_read"]
