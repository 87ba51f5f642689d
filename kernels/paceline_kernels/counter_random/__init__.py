"""Counter-based randomness: every draw is a pure function of (key, position, purpose, index)."""

from paceline_kernels.counter_random.reference import ACCEPT, DRAW, PROPOSAL, gumbel, mix_seed, uniform

__all__ = ["ACCEPT", "DRAW", "PROPOSAL", "gumbel", "mix_seed", "uniform"]
