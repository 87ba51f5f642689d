"""Speculative decoding: proposers draft, the verify accepts or resamples. Public names only."""
