"""Requests at the edge of what is allowed: one token, whole pages, and parameters that leave one token or none to choose."""

import pytest
from law_engine import Answer, make_engine, plain_tokens, run
from scripted_proposers import KnowingProposer

from paceline_runtime.messages import Submit
from paceline_runtime.params import LARGEST_LOGIT_BIAS, SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer

VOCAB_SIZE = 64
NUM_TOKENS = 20
PROMPT = [7, 3, 9, 11, 5, 2] * 4
FORBID_ALL = dict.fromkeys(range(VOCAB_SIZE), -LARGEST_LOGIT_BIAS)
ONE_TOKEN_LEFT = [
    {"temperature": 1e-5},
    {"temperature": 5e-324},
    {"temperature": 1.0, "top_p": 5e-324},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 100.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 2**31 - 1, "top_p": 5e-324},
]
HARSH = [
    {"logit_bias": FORBID_ALL},
    {"logit_bias": {5: LARGEST_LOGIT_BIAS, 6: LARGEST_LOGIT_BIAS}},
    {"repetition_penalty": 0.01, "presence_penalty": -2.0, "frequency_penalty": -2.0},
    {"repetition_penalty": 10.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
]


def _answer(target, proposer, prompt, *, overlap=True, **params) -> Answer:
    engine = make_engine(target, proposer, overlap=overlap)
    return run(engine, {"one": (prompt, SamplingParams(**{"max_tokens": NUM_TOKENS, "ignore_eos": True, **params}))})["one"]


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
@pytest.mark.parametrize("num_prompt", [1, 63, 64, 65, 127, 128, 129])
def test_one_token_after_prompts_around_whole_pages(target, num_prompt, overlap):
    """The token comes from the prompt's own forward; whatever a step ahead drafted is dropped."""
    prompt = [2 + 7 * index % 60 for index in range(num_prompt)]
    answer = _answer(target, NgramProposer(3), prompt, overlap=overlap, max_tokens=1)

    assert plain_tokens(target, prompt, 1) == answer.token_ids
    assert "length" == answer.finish_reason


@pytest.mark.parametrize("params", ONE_TOKEN_LEFT, ids=repr)
def test_sampling_that_leaves_one_token_is_greedy(target, params):
    """Temperatures and filters too small for anything but the likeliest token."""
    answer = _answer(target, NgramProposer(3), PROMPT, seed=1, **params)

    assert plain_tokens(target, PROMPT, NUM_TOKENS) == answer.token_ids


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 100.0])
@pytest.mark.parametrize("params", HARSH, ids=["forbid-all", "force-two", "reward", "punish"])
def test_the_harshest_parameters_give_numbers(target, params, temperature):
    """Every token is one of the vocabulary and every log probability a number, also where all tokens are forbidden."""
    answer = _answer(target, NgramProposer(3), PROMPT, temperature=temperature, seed=1, logprobs=2, **params)
    logprobs = [entry.logprob for tokens in answer.steps for entry in tokens.logprobs]

    assert NUM_TOKENS == len(answer.token_ids) == len(logprobs)
    assert all(0 <= token < VOCAB_SIZE for token in answer.token_ids)
    assert all(logprob <= 0.0 for logprob in logprobs)
    if params is HARSH[1]:
        assert set(answer.token_ids) <= {5, 6}


def test_more_alternatives_than_the_vocabulary_has_are_all_of_it(small_target):
    """Twenty are allowed; eight tokens have eight."""
    answer = _answer(small_target, NgramProposer(3), [1, 2, 3], logprobs=20)

    assert {8} == {len(entry.top_ids) for tokens in answer.steps for entry in tokens.logprobs}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_can_force_the_end(target, temperature):
    """The end-of-text token, forced, is the whole answer; with `ignore_eos` it is a token like others."""
    (eos,) = target.facts.eos_token_ids
    params = {"temperature": temperature, "logit_bias": {eos: 100.0}}

    assert [eos] == _answer(target, NgramProposer(3), PROMPT, ignore_eos=False, **params).token_ids
    assert [eos] * NUM_TOKENS == _answer(target, NgramProposer(3), PROMPT, **params).token_ids


def test_more_choices_than_can_run_together_all_draw_their_own_text(target):
    """Twelve choices of one seed in an engine of four rows: each ends, each differs, each is what it is alone."""
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=5, ignore_eos=True)
    engine = make_engine(target, NgramProposer(3), overlap=True)
    texts = _choices(engine, params, range(12))

    assert 12 == len({tuple(text) for text in texts.values()})
    assert _choices(make_engine(target, overlap=False), params, [7]) == {"7": texts["7"]}


def test_requests_without_a_seed_draw_texts_of_their_own(target):
    """The same prompt eight times at once; an engine of the same seed draws the same eight again, one of another does not."""

    def texts(seed):
        engine = make_engine(target, NgramProposer(3), seed=seed)
        params = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True)
        answers = run(engine, {str(number): (PROMPT, params) for number in range(8)})
        return [tuple(answer.token_ids) for answer in answers.values()]

    assert len({*texts(0)}) == 8
    assert texts(0) == texts(0)
    assert not {*texts(0)} & {*texts(1)}


def _choices(engine, params, numbers) -> dict[str, list[int]]:
    texts: dict[str, list[int]] = {str(number): [] for number in numbers}
    for number in numbers:
        engine.add(Submit(request_id=str(number), prompt_ids=PROMPT, params=params, choice=number))
    while engine.has_work:
        for tokens in engine.step():
            texts[tokens.request_id] += tokens.token_ids
    return texts


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_an_abort_at_any_step_harms_nobody(target, overlap):
    """Prefilling, decoding with a step in flight, waiting after a preemption: the others' texts stay, nothing leaks."""
    prompts = {"kept": list(range(2, 62)) * 2, "gone": list(range(62, 2, -1)) * 2}
    params = SamplingParams(max_tokens=90, ignore_eos=True)
    plain = {name: plain_tokens(target, ids, 90) for name, ids in prompts.items()}
    proposer = KnowingProposer(3, VOCAB_SIZE)
    proposer.know({prompts[name][0]: prompts[name] + text for name, text in plain.items()})
    phases = set()
    for moment in range(0, 60, 3):
        engine = make_engine(target, proposer, overlap=overlap, num_pages=6, max_prefill_tokens=64, max_model_len=320)
        for name, ids in prompts.items():
            engine.add(Submit(request_id=name, prompt_ids=ids, params=params))
        gone = engine.scheduler.waiting[-1]
        kept: list[int] = []
        for step in range(1000):
            if step == moment:
                phases.add((gone.phase.value, gone.num_preemptions > 0, gone.num_in_flight > 0))
                engine.abort("gone")
            kept += [token for tokens in engine.step() if tokens.request_id == "kept" for token in tokens.token_ids]
            engine.check_integrity()
            if not engine.has_work:
                break

        assert plain["kept"] == kept
        assert engine.stats().num_free_pages + engine.stats().num_cached_pages == 6
    assert {"waiting", "prefill", "decode"} <= {phase for phase, *_ in phases}
    assert ("waiting", True, False) in phases, "never aborted after a preemption"
    assert not overlap or ("decode", False, True) in phases, "never aborted with a step in flight"
