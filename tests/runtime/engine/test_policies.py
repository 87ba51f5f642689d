"""Depth and prefill budget: what they learn from made-up steps, and that adaptive depth changes no text."""

import pytest
from law_engine import make_engine, plain_tokens, record_plans, run

from paceline_runtime.engine.budget import PrefillBudget
from paceline_runtime.engine.depth import AdaptiveDepth
from paceline_runtime.engine.warmup import warm_up
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer


def _drive(policy, acceptance, seconds, num_steps=400):
    """Depths chosen when a draft is accepted up to `acceptance` and a step of depth d takes `seconds(d)`."""
    chosen = []
    for _ in range(num_steps):
        depth = policy.choose(1)
        chosen.append(depth)
        policy.observed(depth, 1, seconds(depth), [min(depth, acceptance)])
    return chosen


@pytest.mark.parametrize(
    ("acceptance", "seconds", "best"),
    [
        (7, lambda depth: 1.0 + 0.03 * depth, 7),
        (0, lambda depth: 1.0 + 0.03 * depth, 0),
        (1, lambda depth: 1.0 + 0.2 * depth, 1),
        (3, lambda depth: 1.0 + 0.2 * depth, 3),
        (7, lambda depth: 1.0 + 2.0 * depth, 0),
    ],
)
def test_the_fastest_depth_is_found_and_kept(acceptance, seconds, best):
    """Nearly all late steps run at the depth with the most tokens per second."""
    chosen = _drive(AdaptiveDepth(7), acceptance, seconds)

    assert chosen[200:].count(best) >= 0.95 * 200


def test_depth_zero_is_left_when_the_text_becomes_predictable():
    """Trials of a neighbour notice it."""
    policy = AdaptiveDepth(7)

    def seconds(depth):
        return 1.0 + 0.05 * depth

    assert 0 == _drive(policy, 0, seconds)[-1]
    assert 7 in _drive(policy, 7, seconds, 2000)[-100:]


def test_a_first_step_that_loads_kernels_does_not_rule_its_depth_out():
    """Two hundred times as long as the others of its depth: the depth is the best and used again within 500 steps."""
    times = iter([2.0])

    def seconds(depth):
        return next(times, 0.0114) if depth == 7 else 0.01 + 0.0002 * depth

    assert 7 in _drive(AdaptiveDepth(7), 7, seconds, 500)[-20:]


def test_what_a_warm_up_took_is_forgotten(target):
    """Its steps compile kernels: afterwards depth and budget begin as if nothing had run."""
    ticks = iter(range(0, 10**9, 1000))
    engine = make_engine(target, NgramProposer(7), speculative_adaptive=True)
    engine._clock = lambda: next(ticks)
    warm_up(engine)
    engine._budget.measured(0.01, num_decoding=1, num_prefill_tokens=0)
    engine._budget.measured(0.015, num_decoding=1, num_prefill_tokens=64)

    assert 64 == engine._budget.take(num_decoding=1, has_prompts=True)
    assert AdaptiveDepth(7).choose(1) == engine._depth.choose(1) == 7
    assert 0 == engine.stats().generated_tokens == engine.stats().steps


def test_steps_without_a_verify_say_nothing_of_acceptance():
    """A long prompt leaves what was learned about drafts as it was."""
    policies = [AdaptiveDepth(7), AdaptiveDepth(7)]
    for policy in policies:
        _drive(policy, 5, lambda depth: 1.0 + 0.1 * depth)
    for _ in range(100):
        policies[0].observed(7, 0, None, [])

    assert policies[0].choose(1) == policies[1].choose(1) == 7


def _take(budget, num_steps, num_decoding):
    """What each of some steps may prefill, all of it spent."""
    taken = []
    for _ in range(num_steps):
        taken.append(budget.take(num_decoding=num_decoding, has_prompts=True))
        budget.spent(taken[-1])
    return taken


def test_a_budget_beside_decoding_is_worth_a_step():
    """A token costs a hundredth of a step: about ninety tokens fit within 1.9 times the step, in whole pages."""
    budget = PrefillBudget(2048)
    assert 2048 == budget.take(num_decoding=0, has_prompts=True)
    budget.measured(1.0, num_decoding=4, num_prefill_tokens=0)
    budget.measured(2.0, num_decoding=4, num_prefill_tokens=100)
    taken = _take(budget, 100, num_decoding=4)

    assert all(tokens % 64 == 0 for tokens in taken)
    assert 85 <= sum(taken) / 100 <= 90


def test_a_slow_prefill_runs_every_few_steps():
    """Where a page costs more than a step, most steps have none, but none are lost."""
    budget = PrefillBudget(2048)
    budget.measured(1.0, num_decoding=4, num_prefill_tokens=0)
    budget.measured(11.0, num_decoding=4, num_prefill_tokens=100)
    taken = _take(budget, 100, num_decoding=4)

    assert {0, 64} == set(taken)
    assert 8 <= sum(taken) / 100 <= 9


def test_a_short_prompt_does_not_hold_up_a_long_one():
    """Seven tokens take as long as a page: by the token they would make the next prompt nine times as dear."""
    budget = PrefillBudget(2048)
    budget.measured(1.0, num_decoding=1, num_prefill_tokens=0)
    budget.measured(1.1, num_decoding=0, num_prefill_tokens=7)
    taken = _take(budget, 20, num_decoding=1)

    assert sum(taken) >= 15 * 64


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_adaptive_depth_changes_no_greedy_text(target, overlap):
    """With a clock that makes every depth the best in turn, each depth is used and the text stays plain."""
    prompt = [7, 3, 9, 11, 5, 2] * 12
    ticks = iter(range(10**9))
    engine = make_engine(target, NgramProposer(7), overlap=overlap, speculative_adaptive=True)
    engine._clock = lambda: (next(ticks) * 7919) % 1013 / 100
    plans = record_plans(engine)
    answer = run(engine, {"one": (prompt, SamplingParams(max_tokens=200, ignore_eos=True))})["one"]

    assert plain_tokens(target, prompt, 200) == answer.token_ids
    assert {0, 1, 3, 7} == {plan.depth for plan in plans if plan.decode}


def test_a_cost_that_grows_with_the_context_is_followed():
    """Tokens that cost twice as much every few pages never make a step much longer than the share allows."""
    budget = PrefillBudget(2048)
    budget.measured(0.05, num_decoding=0, num_prefill_tokens=1000)
    budget.measured(1.0, num_decoding=4, num_prefill_tokens=0)
    done, steps = 0, []
    while done < 16_384:
        tokens = budget.take(num_decoding=4, has_prompts=True)
        seconds = 1.0 + tokens * 5e-5 * (1 + done / 64)
        budget.spent(tokens)
        budget.measured(seconds, num_decoding=4, num_prefill_tokens=tokens)
        done += tokens
        steps.append(seconds)

    assert sum(steps) / len(steps) < 2.0
    assert max(steps) < 3.0
