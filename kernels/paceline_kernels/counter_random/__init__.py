"""Counter-based randomness: every draw is a pure function of (key, position, purpose, index).

The sampler, the verify and the proposers draw with it. It keeps no state and knows no batch.
"""

from paceline_kernels.counter_random.reference import ACCEPT, DRAW, PROPOSAL, gumbel, mix_seed, uniform

__all__ = ["ACCEPT", "DRAW", "PROPOSAL", "gumbel", "mix_seed", "uniform"]
