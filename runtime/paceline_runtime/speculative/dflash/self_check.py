"""The draft's start-up self-check: one known block through the serving path and through the plainest path there is.

The loader calls it, so that a process whose draft cannot work never gets ready. The serving path is taps summed layer by
layer, context rows in pages, a ring rebuilt from them in tiles, and the device's kernels; the plain path concatenates the
features, projects them at once, attends over all of them and uses the references. A mismatch would change no text but reject
every draft, so nobody would see it unless it is looked for (vLLM #54373, #55250: acceptance of zero, silently).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.backend import Backend
from paceline_kernels.selector import Candidates
from paceline_runtime.batch import Chunk, PrefillBatch
from paceline_runtime.cache.allocation import allocate
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.proposer import DFlashProposer

NUM_TOKENS = 100
"""Length of the known prompt: more than a page and a tile, and no multiple of either."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.15}
"""Greatest relative RMS deviation of a block's hidden states: the paths round at different places. A draft of the 27B's shape
with random weights was at 0.044 in bfloat16 on an H200; a wrong path is nearer to 1."""


class SelfCheckError(RuntimeError):
    """The serving path and the plain path draft different blocks: this process must not become ready."""


@dataclass(frozen=True)
class SelfCheck:
    """What the check found: the deviation of hidden states (relative RMS) and of q (absolute), and leading equal drafts."""

    hidden_deviation: float
    q_deviation: float
    num_equal_drafts: int
    num_drafts: int

    def __str__(self) -> str:
        return (
            f"draft self-check: hidden states within {self.hidden_deviation:.1e}, q within {self.q_deviation:.1e}, "
            f"{self.num_equal_drafts} of {self.num_drafts} drafts equal"
        )


@torch.inference_mode()
def check_draft(proposer: DFlashProposer, target: TargetModel) -> SelfCheck:
    """Draft a known block both ways; raises SelfCheckError when they differ by more than rounding."""
    draft, num_drafts = proposer.draft, proposer.num_drafts
    features, anchors = _known_features(draft, target), torch.zeros(1, dtype=torch.int64, device=target.device)
    lengths = torch.full_like(anchors, NUM_TOKENS)
    plain = draft.computed_by(Backend.REFERENCE)
    embeddings = draft.block_embeddings(target, anchors, num_drafts)
    rings = _served_rings(DFlashProposer(draft, target, num_drafts), features)
    hidden = draft.forward(embeddings, lengths, torch.ones_like(anchors), *rings)[:, 1:]
    expected = plain.forward(embeddings, lengths, torch.zeros_like(anchors), *_plain_rings(draft, features))[:, 1:]
    candidates = plain.candidates(target, expected)
    tokens, q = _walk(draft, candidates, lengths)
    expected_tokens, expected_q = _walk(plain, candidates, lengths)
    equal = int((tokens == expected_tokens)[0].to(torch.int64).cumprod(0).sum())
    same_path = slice(0, equal + 1)
    q_deviation = float((q[:, same_path] - expected_q[:, same_path]).abs().max())
    found = SelfCheck(_relative_rms(hidden, expected), q_deviation, equal, num_drafts)
    tolerance = TOLERANCES[draft.dtype]
    if not (found.hidden_deviation <= tolerance and found.q_deviation <= tolerance):
        raise SelfCheckError(f"{found}, but at most {tolerance:.0e} is rounding; the draft would be rejected throughout")
    return found


def _known_features(draft: Draft, target: TargetModel) -> torch.Tensor:
    """Made-up layer outputs [N, taps, H] of a known prompt, other ones for each tap; the target's own would check no more."""
    num_taps = len(draft.config.target_layer_ids)
    ids = torch.arange(NUM_TOKENS * num_taps, device=target.device) * 7919 % target.facts.vocab_size
    return target.embed(ids).to(draft.dtype).view(NUM_TOKENS, num_taps, -1)


def _served_rings(proposer: DFlashProposer, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rings of two seats; the ring of seat 1 was rebuilt from the pages of a prefilled prompt."""
    device = features.device
    pages = torch.arange(1, 2 + NUM_TOKENS // PAGE_TOKENS, device=device)
    proposer.bind(allocate(MemoryLayout(proposer.buffers, num_pages=1 + len(pages), num_seats=2), device))
    positions = torch.arange(NUM_TOKENS, device=device)
    one = torch.ones(1, dtype=torch.int64, device=device)
    batch = PrefillBatch(
        ids=torch.zeros_like(positions),
        positions=positions,
        cells=pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
        active=torch.ones_like(positions, dtype=torch.bool),
        seats=one - 1,
        page_table=pages[None],
        lengths=one - 1,
        chunks=(Chunk(0, NUM_TOKENS, 0),),
    )
    sink = proposer.sink(batch)
    for index, layer in enumerate(proposer.draft.config.target_layer_ids):
        sink.layer_output(layer, features[:, index])
    proposer.on_rows(batch, sink, features[:, 0])
    proposer.on_restore(1, pages, NUM_TOKENS)
    return proposer.rings.keys, proposer.rings.values


def _plain_rings(draft: Draft, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [L, 1, N, Hkv, D] of all context rows at once: a ring as long as the prompt."""
    context = draft.context_rows(draft.fc(features.flatten(1)))
    table = draft.rotary.table(torch.arange(NUM_TOKENS, device=context.device), backend=draft.backend)
    _, keys, values = zip(
        *(layer.attention.project(context, table, backend=draft.backend) for layer in draft.layers), strict=True
    )
    return torch.stack(keys)[:, None], torch.stack(values)[:, None]


def _walk(draft: Draft, candidates: Candidates, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = torch.zeros_like(lengths)
    return draft.select(candidates, zeros, torch.ones_like(zeros, dtype=torch.float32), zeros, lengths)


def _relative_rms(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The deviation; NaN, which no tolerance admits, when either holds a NaN."""
    found, expected = found.to(torch.float64), expected.to(torch.float64)
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-30))
