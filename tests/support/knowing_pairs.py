"""Tiny targets whose next token follows from the last one often but not always, and DFlash 2 drafts that know how.

A random draft accepts next to nothing, so the laws would hold of code that never accepts. Here every token's embedding has
one hot channel, which makes the selector's input nearly constant, and the selector's codebooks hold the target's own map from
a token to the next, but for some that are taught wrongly; the target's attention and the draft's own logits bend it further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from dflash.model import DFlash2DraftModel
from dflash_pairs import draft_content, oracle_draft, write_draft
from tiny_models import build_reference
from torch.nn import Module

from paceline_compat import read_draft
from paceline_runtime.loaders import load_target
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.dflash.load import load_proposer
from paceline_runtime.speculative.dflash.proposer import DFlashProposer

DRAFT_SEEDS = {"llama": 3, "mistral": 2, "qwen2": 1, "qwen3": 1, "qwen3_5": 1, "qwen3_5_moe": 2}
"""Drafts of whose accept lengths each of 0 to 7 occurs several times in a few hundred tokens."""
VOCAB_SIZE = 64
WINDOW = 48
MAX_POSITIONS = 4096
RANK = 32
MISTAUGHT = (0, 1, 3, 6, 10, 15, 21, 28)
"""Tokens after which the draft is taught wrongly, 1 to 8 apart on the way from token to token: 0 to 7 drafts are right."""


@dataclass(frozen=True)
class KnowingPair:
    """A target and its draft, both as checkpoints on disk, loaded here, and as the oracles' models."""

    target_path: Path
    draft_path: Path
    target: TargetModel
    oracle_target: Module
    oracle_draft: DFlash2DraftModel

    def proposer(self, num_steps: int) -> DFlashProposer:
        """A fresh proposer for an engine of its own."""
        return load_proposer(
            read_draft(str(self.draft_path)), self.target, num_steps, torch.float64, torch.device("cpu"), MAX_POSITIONS
        )


@torch.no_grad()
def knowing_pair(
    folder: Path,
    family: str,
    strength: float = 2.8,
    scale: float = 0.09,
    prepare: Callable[[Module], Module] = lambda model: model,
) -> KnowingPair:
    """Build, save and load a pair of the family, in float64; `prepare` may change the target's random weights first.

    At this `strength` of the codebooks the draft's own logits, and so its context, decide about as often as they do.
    """
    fields = dict(vocab_size=VOCAB_SIZE, eos_token_id=None, max_position_embeddings=MAX_POSITIONS)
    model = prepare(build_reference(family, scale=scale, **fields))
    embedding, next_of = model.get_input_embeddings().weight, torch.arange(VOCAB_SIZE).roll(-1)
    embedding[:, 0] = 6.0
    model.lm_head.weight[next_of] = embedding
    model.lm_head.weight[:, 0] = 0.0
    model.save_pretrained(folder / "target")
    content = draft_content(
        hidden_size=64,
        vocab_size=VOCAB_SIZE,
        mask_token_id=VOCAB_SIZE - 1,
        sliding_window=WINDOW,
        max_position_embeddings=MAX_POSITIONS,
        num_target_layers=4,
        target_layer_ids=[0, 1, 2],
        selector_rank=RANK,
        selector_top_k=VOCAB_SIZE,
    )
    draft = oracle_draft(content, seed=DRAFT_SEEDS[family])
    taught = next_of.clone()
    taught[list(MISTAUGHT)] = next_of[list(MISTAUGHT)] + 20
    _teach(draft, taught, strength)
    write_draft(folder / "draft", draft, content)
    target = load_target(folder / "target", dtype=torch.float64)
    return KnowingPair(folder / "target", folder / "draft", target, model, draft)


def _teach(draft: DFlash2DraftModel, next_of: torch.Tensor, strength: float) -> None:
    """Give every token a random code of signs; a predecessor carries the code of the token that follows it."""
    codes = torch.randn(VOCAB_SIZE, RANK, generator=torch.Generator().manual_seed(4)).sign().to(torch.float64)
    selector = draft.candidate_selector
    selector.successor_codebook.weight.copy_(codes)
    selector.predecessor_codebook.weight.copy_(strength * codes[next_of])
    selector.hidden_projection.weight.zero_()
    selector.hidden_projection.weight[:, 0] = 1.0
