"""A verify judges a few requests at a time: the same verdicts as one by one, in the memory that was planned."""

import pytest
import torch
from row_params import row_params
from torch.profiler import ProfilerActivity, profile

from paceline_compat.memory.parts import VERIFY_ROWS_AT_ONCE, logits_bytes
from paceline_runtime.device.results import Results, outcome_of
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.judge import Texts, judge
from paceline_runtime.speculative.base import Proposal
from paceline_runtime.step import Variant

CPU = torch.device("cpu")
KINDS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, logit_bias={3: 4.0, 5: -1.0}),
    SamplingParams(temperature=0.8, top_k=20, presence_penalty=0.5),
    SamplingParams(temperature=1.2, top_p=0.9, min_p=0.01, repetition_penalty=1.3),
    SamplingParams(frequency_penalty=0.4, logit_bias={7: 2.0}),
    SamplingParams(temperature=1.0, top_p=0.95, logprobs=2),
)


class Verify:
    """Random logits, drafts and texts for `batch` requests of these kinds."""

    def __init__(self, batch, width, vocab_size, kinds=KINDS, dtype=torch.float32):
        self.params = [kinds[index % len(kinds)] for index in range(batch)]
        self.history = torch.randint(0, vocab_size, (batch + 1, 64 + 2 + width))
        self.logits = torch.randn(batch, width, vocab_size, dtype=dtype) * 2
        candidates = torch.rand(batch, width - 1, vocab_size).topk(16).indices
        q = torch.rand(batch, width - 1, 16).softmax(-1)
        self.proposal = Proposal(candidates[..., 0], candidates, q)
        self.lengths = torch.randint(20, 40, (batch,))

    def judge(self, start, end):
        """Verdict and adjusted logits of some of the requests."""
        params = row_params(self.params[start:end], list(range(start, end)), [9] * (end - start), CPU)
        texts = Texts(self.history, torch.arange(1 + start, 1 + end), self.lengths[start:end])
        proposal, depth = self.proposal.part(start, end), torch.full((end - start,), self.logits.shape[1] - 1)
        logits = self.logits[start:end].clone()
        with torch.inference_mode():
            return judge(logits, proposal, depth, texts, params), logits

    def results(self):
        """All of a verify up to the copies of its results."""
        verdict, adjusted = self.judge(0, len(self.params))
        return Results(outcome_of(adjusted, verdict, self.lengths, Variant(num_logprobs=2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_requests_are_judged_as_each_alone(dtype):
    """Forty requests of all kinds, three to a part: accepted drafts, tokens and adjusted logits are bitwise the same."""
    verify = Verify(40, 9, 100, dtype=dtype)
    verdict, adjusted = verify.judge(0, 40)
    alone = [verify.judge(index, index + 1) for index in range(40)]

    assert 40 * 9 > 2 * VERIFY_ROWS_AT_ONCE
    assert torch.equal(verdict.run, torch.cat([one.run for one, _ in alone]))
    assert torch.equal(verdict.num_tokens, torch.cat([one.num_tokens for one, _ in alone]))
    assert torch.equal(adjusted, torch.cat([logits for _, logits in alone]))
    assert len(verdict.num_tokens.unique()) > 1


@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS[2:3], KINDS[3:4], KINDS], ids=["greedy", "top-k", "whole", "mixed"])
@pytest.mark.parametrize(("batch", "width"), [(64, 8), (64, 1), (8, 4), (3, 32)])
def test_a_verify_takes_no_more_than_planned(batch, width, kinds):
    """The largest sum of what is allocated at any time, the logits themselves included."""
    vocab_size = 2048
    verify = Verify(batch, width, vocab_size, kinds)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        verify.results()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held, peak = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)

    small = 64 << 10  # tokens, positions, masks of the drafts
    assert verify.logits.nbytes < peak <= logits_bytes(batch * width, vocab_size, 2) + small
