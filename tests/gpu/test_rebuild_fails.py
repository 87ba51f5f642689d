"""A rebuild that the GPU's memory refuses leaves an engine that answers: by what is free, and by an allocation that fails."""

import gc

import pytest
import torch
from gpu_scale import Scale, random_dflash, save_predictable
from law_engine import make_engine, run

from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Rebuild
from paceline_runtime.params import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
PROMPT = {"one": ([7, 3, 9, 11, 5, 2] * 25, SamplingParams(max_tokens=40, ignore_eos=True))}


@pytest.fixture(params=["off", "dflash"])
def engine(request, tmp_path):
    """With pages enough for a prefix, and a draft's planes and rings or not; engines before it have given their memory back."""
    gc.collect()
    scale = Scale(torch.device("cuda"))
    path = save_predictable("qwen3", tmp_path, scale)
    target = load_target(path, dtype=scale.dtype, device=scale.device)
    proposer = random_dflash(path, target, 7) if request.param == "dflash" else None
    return make_engine(target, proposer, num_pages=64, memory_bytes=None)


def bytes_per_page(engine) -> int:
    """Of K/V and, with a draft, its context rows; the dummy is a page too."""
    executor = engine.executor
    planes = [*executor.memory.pages.keys, *executor.memory.pages.values]
    if executor.proposer is not None:
        planes.append(executor.proposer.plane)
    return sum(plane.nbytes for plane in planes) // 65


def test_what_is_stated_is_bounded_by_what_is_free_on_the_device(engine):
    """Twice the whole device and millions of pages are refused; nearly all that is free can be had, and given back."""
    before, total = run(engine, PROMPT)["one"], torch.cuda.mem_get_info()[1]
    page_bytes = bytes_per_page(engine)
    beyond = (Rebuild(memory_bytes=2 * total, num_pages=10**7), Rebuild(num_pages=10**7))
    refused = [engine.rebuild(sizes) for sizes in beyond]
    most = torch.cuda.mem_get_info()[0] * 9 // 10 // page_bytes
    rebuilt = [engine.rebuild(Rebuild(num_pages=num_pages)) for num_pages in (most, most - 1, 64)]

    assert ["memory_bytes", "num_pages"] == [answer.param for answer in refused]
    assert [None] * 3 == [answer.error for answer in rebuilt]
    assert before.token_ids == run(engine, PROMPT)["one"].token_ids
    assert_captured(engine)


def assert_captured(engine):
    """Steps after a rebuild are replayed as those before it."""
    decoder = engine.executor._decoder
    assert decoder.num_captured > 0
    assert not decoder._refused


def test_an_allocation_that_fails_brings_the_old_sizes_back(engine):
    """The plan counts what the driver has free; the process is allowed less, so that the caches are taken half-way."""
    before, total = run(engine, PROMPT)["one"], torch.cuda.mem_get_info()[1]
    page_bytes = bytes_per_page(engine)
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + (2 << 30)
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        rebuilt = engine.rebuild(Rebuild(num_pages=(8 << 30) // page_bytes))
        again = run(engine, PROMPT)["one"]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert ("num_pages", 64) == (rebuilt.param, rebuilt.num_pages)
    assert "out of memory" in rebuilt.error
    assert (before.token_ids, 0) == (again.token_ids, again.cached_tokens)
    assert_captured(engine)
    assert engine.rebuild(Rebuild(num_pages=(8 << 30) // page_bytes)).error is None
