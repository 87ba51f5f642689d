"""A transformers target for the `dflash` package that computes the whole text anew in every call.

The package rolls a target's cache back by cropping, which leaves rejected drafts in the recurrent states of hybrids: its text
is then wrong, without a word. Here the cache is the text itself, so that cropping is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dflash.model
import pytest
import torch


class TextCache:
    """The committed ids [1, T] in the place of a cache."""

    def __init__(self) -> None:
        self.ids = torch.empty((1, 0), dtype=torch.int64)

    def get_seq_length(self) -> int:
        return self.ids.shape[1]

    def crop(self, minus_removed: int) -> None:
        """The package names how many ids to remove, as a number below 0, or 0."""
        assert minus_removed <= 0
        self.ids = self.ids[:, : self.ids.shape[1] + minus_removed]


class WholeTextTarget:
    """What the package calls of a target."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.config, self.device, self.lm_head = model.config, model.device, model.lm_head
        self.get_input_embeddings = model.get_input_embeddings

    def __call__(self, ids: torch.Tensor, *, past_key_values: TextCache, logits_to_keep: int = 0, **_: Any) -> SimpleNamespace:
        past_key_values.ids = torch.cat((past_key_values.ids, ids), dim=1)
        out = self._model(past_key_values.ids, use_cache=False, output_hidden_states=True)
        rows = ids.shape[1]
        hidden = tuple(state[:, -rows:] for state in out.hidden_states)
        return SimpleNamespace(logits=out.logits[:, -(logits_to_keep or rows) :], hidden_states=hidden)


def install(patch: pytest.MonkeyPatch, model: torch.nn.Module) -> WholeTextTarget:
    """Make the package use a text cache for this model, and for nothing else."""
    original: Callable[[Any], Any] = dflash.model._make_cache
    patch.setattr(dflash.model, "_make_cache", lambda config: TextCache() if config is model.config else original(config))
    return WholeTextTarget(model)
