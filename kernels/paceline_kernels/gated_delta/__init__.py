"""The gated delta rule: prefill from a state, and a verify that journals its rows instead of writing the state."""

from paceline_kernels.gated_delta.reference import DeltaRows, Journal, prefill, replay, verify

__all__ = ["DeltaRows", "Journal", "prefill", "replay", "verify"]
