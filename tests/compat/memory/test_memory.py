"""Memory arithmetic against the published figures, and plans that fit, fill and refuse."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from released_pairs import (
    QWEN_27B,
    QWEN_35B,
    QWEN_FLASH_NEXT,
    RELEASED_PAIRS,
    TINY_HYBRID_CONFIG,
    released_draft,
    released_target,
    tiny_draft,
    tiny_target,
)

from paceline_compat import PlanOptions, plan
from paceline_compat.memory import parts as memory
from paceline_compat.memory.buffers import STATES, dflash_buffers, target_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.machines import DEVICE_BYTES, budget_bytes

MIB = 1 << 20


def of_target(target, dtype="bfloat16", num_drafts=7) -> MemoryLayout:
    """What a target keeps, one slot of states."""
    return MemoryLayout(target_buffers(target, dtype, num_drafts), num_slots=1)


def of_draft(draft) -> MemoryLayout:
    """What a draft keeps in bfloat16."""
    return MemoryLayout(dflash_buffers(draft, "bfloat16"))


def recurrent_bytes(target) -> int:
    """One slot's recurrent states, those of the convolution left out."""
    return next(buffer.unit_bytes for buffer in target_buffers(target, "bfloat16", 7) if buffer.name == "recurrent_states")


def test_published_sizes_of_the_27b():
    """GDN state with a float32 convolution: 149.6 MiB a slot. Draft ring: 41 MiB a request. Codebooks: 0.127 GB each."""
    target, draft = released_target(QWEN_27B), released_draft(QWEN_27B)
    assert of_target(target, "float32").bytes_per("slot") / MIB == 149.625
    assert recurrent_bytes(target) == 48 * 48 * 128 * 128 * 4
    assert of_draft(draft).bytes_per("seat") / MIB == 41.25
    assert memory.codebook_bytes(draft, 2) == 2 * 248320 * 256 * 2
    assert of_target(target).bytes_per("token") == 2 * 16 * 4 * 256 * 2
    assert memory.draft_weight_bytes(draft, 2) + memory.codebook_bytes(draft, 2) == 2 * 1_924_404_480


def test_published_sizes_of_the_35b():
    """20 KiB of K/V a token in bfloat16 (10 KB in fp8), ring 49.5 MiB, state 63 MB."""
    target, draft = released_target(QWEN_35B), released_draft(QWEN_35B)
    assert of_target(target).bytes_per("token") == 20 * 1024
    assert of_draft(draft).bytes_per("seat") / MIB == 49.5
    assert round(recurrent_bytes(target) / 1e6) == 63


def test_context_rows_have_the_size_the_specification_gives():
    """25 windows of 2112 rows: 516 / 206 / 258 MiB."""
    windows = [25 * 2112 * of_draft(released_draft(pair)).bytes_per("token") / MIB for pair in RELEASED_PAIRS]
    assert [round(size) for size in windows] == [516, 206, 258]


def test_dense_targets_have_no_states_and_no_slots():
    target = tiny_target()
    assert memory.num_state_slots(target, 4) == 0
    assert of_target(target).bytes_per("slot") == of_target(target).bytes_per("seat") == 0
    assert of_target(target, "float32").bytes_per("token") == 2 * 4 * 2 * 16 * 4


def test_weights_are_counted_as_loaded():
    """A hybrid's norms and rates of decay are kept in float32 at least."""
    target = released_target(QWEN_27B)
    tensors = {name: t for name, t in target.tensors.items() if not name.startswith("mtp.")}
    text = sum(t.num_elements for t in tensors.values())
    vectors = sum(t.num_elements for t in tensors.values() if len(t.shape) == 1)
    assert memory.target_weight_bytes(target, 2) == 2 * (text - vectors) + 4 * vectors
    assert memory.target_weight_bytes(target, 4) == 4 * text
    assert memory.target_weight_bytes(target, 4, "mtp") == 4 * (target.num_params - text)


def test_a_plan_fills_its_budget_with_pages():
    budget = budget_bytes("H200", 0.9)
    made = plan(budget, released_target(QWEN_27B), released_draft(QWEN_27B), PlanOptions("dflash"))
    assert made.fits
    assert budget - made.page_bytes < made.total_bytes <= budget
    assert made.page_bytes == 64 * (65536 + 10240)
    assert {row.name for row in made.rows} >= {"target weights", "draft codebooks", "draft rings", "recurrent states"}


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_helps():
    budget = budget_bytes("H100", 0.9)
    made = plan(budget, released_target(QWEN_27B), released_draft(QWEN_27B), PlanOptions("dflash"))
    assert not made.fits
    assert made.short_bytes == made.total_bytes - budget
    text = made.to_text()
    assert "does not fit" in text
    for flag in (
        "--max-model-len",
        "--max-running-requests",
        "--speculative-algorithm ngram",
        "--max-prefill-tokens 1024",
        "--memory-bytes",
    ):
        assert flag in text
    assert "--graph-pool" not in text


def test_an_allowance_for_graphs_that_leaves_no_room_is_named():
    made = plan(1 << 20, tiny_target(), None, PlanOptions(graph_pool_bytes=512 << 20))
    assert any("--graph-pool" in remedy and "512.0 MiB" in remedy for remedy in made.remedies)


def test_the_context_a_remedy_names_does_fit():
    target, draft, budget = released_target(QWEN_27B), released_draft(QWEN_27B), budget_bytes("H100", 0.9)
    remedy = plan(budget, target, draft, PlanOptions("dflash")).remedies[0]
    longest = int(remedy.split()[1])
    assert plan(budget, target, draft, PlanOptions("dflash", max_model_len=longest)).fits
    assert not plan(budget, target, draft, PlanOptions("dflash", max_model_len=longest + 256)).fits


def test_explicit_pages_are_honoured_or_refused():
    target = tiny_target()
    enough = plan(1 << 30, target, None, PlanOptions(num_pages=9))
    assert (enough.fits, enough.num_pages, enough.num_tokens) == (True, 9, 576)
    few = plan(1 << 30, target, None, PlanOptions(num_pages=4))
    assert (few.fits, few.num_pages) == (False, 4)
    assert any("--num-pages between 8 and" in line for line in few.remedies)
    assert "--max-model-len 256 fits" in few.remedies
    many = plan(enough.total_bytes, target, None, PlanOptions(num_pages=10))
    assert (many.fits, many.short_bytes) == (False, many.page_bytes)
    assert many.remedies == ("--num-pages between 8 and 9 fits",)


def test_pages_end_where_more_would_never_be_used():
    """Twice what all running requests can fill: the rest of a large budget stays free."""
    made = plan(1 << 40, tiny_target(), None, PlanOptions(max_running=3))
    assert made.num_pages == 2 * 3 * (512 // 64)


def test_algorithms_pay_for_their_own_parts_only():
    target, draft, budget = released_target(QWEN_27B), released_draft(QWEN_27B), 1 << 38
    names = {
        algorithm: {row.name for row in plan(budget, target, draft, PlanOptions(algorithm)).rows}
        for algorithm in ("off", "ngram", "mtp", "dflash")
    }
    assert names["off"] == names["ngram"]
    assert names["mtp"] - names["off"] == {"MTP head", "MTP hidden rows"}
    assert names["dflash"] - names["off"] == {"draft weights", "draft codebooks", "draft rings"}
    mtp = plan(budget, target, None, PlanOptions("mtp"))
    assert mtp.page_bytes == 64 * (65536 + 4096) + 5120 * 2
    assert next(row.num_bytes for row in mtp.rows if row.name == "MTP hidden rows") == (4 + 1) * ((1 + 3) * 5120 * 2 + 8)


@settings(max_examples=100, deadline=None)
@given(
    budget=st.integers(0, 1 << 26),
    algorithm=st.sampled_from(["off", "ngram", "mtp", "dflash"]),
    max_running=st.integers(1, 64),
    max_model_len=st.none() | st.integers(1, 512),
    num_pages=st.none() | st.integers(1, 200),
    is_hybrid=st.booleans(),
)
def test_a_plan_fits_exactly_when_it_stays_in_budget(budget, algorithm, max_running, max_model_len, num_pages, is_hybrid):
    """Whatever the numbers: it fits iff one context has its pages and everything together is within the budget."""
    target = tiny_target(TINY_HYBRID_CONFIG) if is_hybrid else tiny_target()
    options = PlanOptions(
        algorithm, max_running=max_running, max_model_len=max_model_len, num_pages=num_pages, max_prefill_tokens=64
    )
    made = plan(budget, target, tiny_draft(), options)
    least = memory.pages_for(max_model_len or 512)
    assert made.fits == (made.total_bytes <= budget and made.num_pages >= least)
    assert made.num_pages == num_pages or num_pages is None
    assert (made.remedies == ()) == made.fits
    if not made.fits and num_pages is None:
        assert made.short_bytes == made.total_bytes - budget


def test_given_state_slots_are_planned_and_the_dummy_beside_them():
    target = tiny_target(TINY_HYBRID_CONFIG)
    few, usual = (plan(1 << 30, target, None, PlanOptions(num_state_slots=slots)) for slots in (8, None))
    assert (few.num_state_slots, usual.num_state_slots) == (9, 21)
    assert usual.total_bytes - few.total_bytes == 12 * of_target(target).num_bytes(STATES)


def test_a_plan_speaks_json():
    made = plan(1 << 30, tiny_target(), tiny_draft(), PlanOptions("dflash", dtype="float32"))
    data = json.loads(json.dumps(made.to_dict()))
    assert data["total_bytes"] == sum(row["num_bytes"] for row in data["rows"])
    assert (data["fits"], data["num_tokens"]) == (True, made.num_pages * 64)


@pytest.mark.parametrize(
    "text, size",
    [("1024", 1024), ("80GiB", 80 << 30), ("80 GB", 80 * 10**9), ("1.5Gi", 3 << 29), ("h200", int(0.9 * DEVICE_BYTES["H200"]))],
)
def test_memory_is_a_size_or_a_device(text, size):
    assert budget_bytes(text, 0.9) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "H900", "1e9", "9" * 16])
def test_other_words_for_memory_are_refused(text):
    with pytest.raises(ValueError, match="neither a size"):
        budget_bytes(text, 0.9)


def test_flash_next_is_planned_from_its_sizes_alone():
    """Its family is not served, but its parts are known: 36 states of 48 heads."""
    target = released_target(QWEN_FLASH_NEXT)
    assert recurrent_bytes(target) == 36 * 48 * 128 * 128 * 4
