"""Attention over paged K/V: rows of a verify over many requests, a chunk of one request's prefill, and the write."""

from paceline_kernels.paged_attention.dispatch import verify_attention, verify_context
from paceline_kernels.paged_attention.reference import VerifyContext, prefill_attention, prefill_bias, write_pages

__all__ = [
    "VerifyContext",
    "prefill_attention",
    "prefill_bias",
    "verify_attention",
    "verify_context",
    "write_pages",
]
