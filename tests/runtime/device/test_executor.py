"""A launch reads nothing back, results carry logprobs, ends are found under both lags, and usage adds up."""

import pytest
import torch
from law_engine import make_engine, plain_tokens, run
from no_reads import watch_launches

from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer

VOCAB_SIZE = 64
PROMPT = [7, 3, 9, 11, 5, 2]


def test_launch_reads_nothing_back(target, monkeypatch):
    """With greedy, sampled, penalized and biased rows, logprobs, chunks and a hit."""
    engine = make_engine(target, NgramProposer(3), overlap=True, max_prefill_tokens=64)
    seen = watch_launches(engine, monkeypatch)
    long = (PROMPT * 30)[:150]
    requests = {
        "greedy": (long, SamplingParams(max_tokens=20)),
        "sampled": (PROMPT, SamplingParams(max_tokens=20, temperature=1.0, top_p=0.9, seed=1)),
        "bounded": (PROMPT, SamplingParams(max_tokens=20, temperature=1.0, top_k=5, seed=1, logprobs=3)),
        "adjusted": (PROMPT, SamplingParams(max_tokens=20, presence_penalty=0.5, logit_bias={3: 1.0})),
    }
    run(engine, requests)
    run(engine, {"again": (long, SamplingParams(max_tokens=5))})

    assert sum(bool(plan.decode) for plan in seen) > 10
    assert any(start.num_cached for plan in seen for start in plan.starts)


@pytest.mark.parametrize(
    ("peek", "words"),
    [(lambda tensor: tensor.tolist(), "tolist"), (lambda tensor: tensor.__setitem__(0, 1), "assigns the number 1")],
)
def test_the_guard_itself_raises(target, monkeypatch, peek, words):
    """A proposer that reads a tensor, or assigns a number, is caught."""

    class Peeking(NgramProposer):
        def propose(self, inputs):
            peek(inputs.lengths)
            return super().propose(inputs)

    engine = make_engine(target, Peeking(3))
    watch_launches(engine, monkeypatch)
    with pytest.raises(AssertionError, match=words):
        run(engine, {"one": (PROMPT, SamplingParams(max_tokens=5))})


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_logprobs_are_the_targets_own(target, overlap):
    """Of each committed token, with the likeliest alternatives first, also inside an accepted run."""
    params = SamplingParams(max_tokens=30, logprobs=2, ignore_eos=True)
    engine = make_engine(target, NgramProposer(3), overlap=overlap)
    answer = run(engine, {"one": (PROMPT, params)})["one"]
    logprobs = [entry for tokens in answer.steps for entry in tokens.logprobs]

    assert answer.token_ids == [entry.token_id for entry in logprobs] == [entry.top_ids[0] for entry in logprobs]
    assert all(entry.logprob == entry.top_logprobs[0] >= entry.top_logprobs[1] for entry in logprobs)
    assert max(answer.accepted) > 0
    from law_engine import last_logits

    for index in (0, 17, 29):
        exact = torch.log_softmax(last_logits(target, PROMPT + answer.token_ids[:index]), 0)
        assert abs(float(exact[answer.token_ids[index]]) - logprobs[index].logprob) < 1e-9


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_stop_strings_across_tokens_and_runs(target, overlap):
    """The request ends with the token that completes the string, wherever in a run it falls."""
    expected = plain_tokens(target, PROMPT, 40)

    def decode(ids):
        return "".join(f"<{token}>" for token in ids)

    for index in range(3, 30, 4):
        stop = f"{expected[index - 1]}><{expected[index]}>"
        first = next(n for n in range(1, 41) if stop in decode(expected[:n]))
        engine = make_engine(target, NgramProposer(7), overlap=overlap, decode=decode)
        answer = run(engine, {"one": (PROMPT, SamplingParams(max_tokens=40, stop=("never", stop), ignore_eos=True))})["one"]

        assert expected[:first] == answer.token_ids
        assert ("stop", stop) == (answer.finish_reason, answer.steps[-1].stop_text)


def test_counters_add_up(target):
    """What the engine counts is what the requests were told."""
    engine = make_engine(target, NgramProposer(3), overlap=True)
    answers = run(
        engine, {name: (PROMPT * size, SamplingParams(max_tokens=60, ignore_eos=True)) for name, size in (("a", 1), ("b", 12))}
    )
    stats = engine.stats()

    assert sum(len(answer.token_ids) for answer in answers.values()) == stats.generated_tokens
    assert sum(tokens.drafted for answer in answers.values() for tokens in answer.steps) == sum(stats.drafted_by_position)
    assert sum(sum(answer.accepted) for answer in answers.values()) == sum(stats.accepted_by_position) > 0
    assert (6 + 72, 0) == (stats.prompt_tokens, stats.num_running)


@pytest.mark.parametrize(
    ("ids", "params", "code", "param", "words"),
    [
        ([], SamplingParams(), "context_length_exceeded", "prompt", "empty"),
        ([1] * 448, SamplingParams(), "context_length_exceeded", "prompt", "context holds 448"),
        ([1] * 440, SamplingParams(max_tokens=9), "context_length_exceeded", "max_tokens", "at most 8"),
        ([64], SamplingParams(), "invalid_value", "prompt", "outside the vocabulary"),
        (
            [1],
            SamplingParams(temperature=-1.0, top_p=0.0),
            "invalid_value",
            "temperature",
            "temperature must be.*top_p must be",
        ),
        ([1], SamplingParams(stop_token_ids=(99,)), "invalid_value", "stop_token_ids", "stop_token_ids token id 99"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(target, ids, params, code, param, words):
    """With the field and the remedy, all problems at once."""
    engine = make_engine(target)
    refused = engine.add(Submit(request_id="bad", prompt_ids=ids, params=params))

    assert refused is not None
    assert (code, param) == (refused.code, refused.param)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(refused.message)
    assert not engine.has_work
