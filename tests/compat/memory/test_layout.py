"""Layouts: sizes by unit and by part, what shards divide, and what lies in the machine's own memory."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from released_pairs import TINY_HYBRID_CONFIG, tiny_draft, tiny_target

from paceline_compat.memory.buffers import dflash_buffers, engine_buffers, mtp_buffers, target_buffers
from paceline_compat.memory.layout import Buffer, MemoryLayout

PROPOSERS = {"off": (), "dflash": dflash_buffers(tiny_draft(), "float32"), "mtp": mtp_buffers(tiny_target(), "float32", 3)}


def layout_of(target, proposer: str, **counts: int) -> MemoryLayout:
    """A whole engine's, in float32 with three drafts."""
    return MemoryLayout(engine_buffers(target, PROPOSERS[proposer], "float32", num_drafts=3, max_model_len=300), **counts)


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("is_hybrid", [False, True], ids=["dense", "hybrid"])
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_bytes_are_those_of_the_shapes_and_grow_by_one_unit_at_a_time(proposer, is_hybrid, num_pages, num_seats, num_slots):
    target = tiny_target(TINY_HYBRID_CONFIG) if is_hybrid else tiny_target()
    layout = layout_of(target, proposer, num_pages=num_pages, num_seats=num_seats, num_slots=num_slots)
    by_unit = {"page": num_pages, "seat": num_seats, "slot": num_slots}

    assert sum(math.prod(layout.shape(buffer)) * item_bytes(buffer) for buffer in layout.buffers) == layout.num_bytes()
    assert sum(count * layout.bytes_per(unit) for unit, count in by_unit.items()) == layout.num_bytes()
    assert sum(layout.num_bytes(part) for part in {buffer.part for buffer in layout.buffers}) == layout.num_bytes()
    assert (layout.bytes_per("slot") > 0) == is_hybrid
    assert layout.bytes_per("page") >= 64 * layout.bytes_per("token") > 0


def item_bytes(buffer: Buffer) -> int:
    return {"float32": 4, "float64": 8, "int64": 8}[buffer.dtype]


@pytest.mark.parametrize("is_hybrid", [False, True], ids=["dense", "hybrid"])
def test_names_tell_all_buffers_apart(is_hybrid):
    """Owners ask for them by name."""
    target = tiny_target(TINY_HYBRID_CONFIG) if is_hybrid else tiny_target()
    for proposer in PROPOSERS:
        names = [buffer.name for buffer in layout_of(target, proposer).buffers]
        assert len(set(names)) == len(names)


def test_shards_divide_what_belongs_to_heads_and_have_the_rest_whole():
    """Two of them have half of K/V, states and journals each; hidden rows and what says who sits where is every shard's."""
    target = tiny_target(TINY_HYBRID_CONFIG)
    divided = {buffer.name for buffer in target_buffers(target, "float32", 3)}
    divided |= {"mtp_keys", "mtp_values", "dflash_ring_keys", "dflash_ring_values"}
    for proposer in PROPOSERS:
        for buffer in layout_of(target, proposer).buffers:
            parts = 2 if buffer.name in divided else 1
            assert buffer.unit_bytes == parts * buffer.shard(2).unit_bytes, buffer.name
            assert buffer == buffer.shard(1)


def test_shards_that_cannot_divide_evenly_are_refused_by_name():
    with pytest.raises(ValueError, match="keys: 3 shards cannot divide 2 evenly"):
        target_buffers(tiny_target(), "float32", 0)[0].shard(3)


def test_what_lies_on_the_host_takes_nothing_of_the_device():
    """It is counted on its own."""
    pages = [Buffer("pages", name, "token", (2, 16), "float32", (3,), place=place) for name, place in PLACES.items()]
    layout = MemoryLayout(tuple(pages), num_pages=5)

    assert 5 * 64 * 3 * 2 * 16 * 4 == layout.num_bytes() == layout.num_bytes(place="host")
    assert 3 * 2 * 16 * 4 == layout.bytes_per("token")
    assert (3, 5, 64, 2, 16) == layout.shape(pages[1])


PLACES = {"here": "device", "there": "host"}
