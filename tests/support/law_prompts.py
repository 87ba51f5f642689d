"""Prompts for the laws: two that share a prefix and part inside a page, and others of given sizes."""

from __future__ import annotations

import torch

NUM_SHARED = 100


def law_prompts(seed: int, ids: range, **sizes: int | tuple[int, int]) -> dict[str, list[int]]:
    """`long` and `parted` share their first 100 tokens; the others have as many tokens as `sizes` says.

    A size (shared, own) begins with that many tokens of the shared prefix. The same arguments give the same prompts.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(count: int) -> list[int]:
        return torch.randint(ids.start, ids.stop, (count,), generator=generator).tolist()

    shared = random(NUM_SHARED)
    prompts = {"long": shared + random(90), "parted": shared + random(40)}
    for name, size in sizes.items():
        num_shared, num_own = size if isinstance(size, tuple) else (0, size)
        prompts[name] = shared[:num_shared] + random(num_own)
    return prompts
