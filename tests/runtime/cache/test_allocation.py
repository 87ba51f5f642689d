"""Tensors are what their layout says: shape, dtype, place, and zero."""

import pytest
import torch
from released_pairs import TINY_HYBRID_CONFIG, tiny_draft, tiny_target

from paceline_compat.memory.buffers import dflash_buffers, engine_buffers
from paceline_compat.memory.layout import Buffer, MemoryLayout
from paceline_runtime.cache.allocation import allocate, dtype_name, torch_dtype

CPU = torch.device("cpu")


def test_every_buffer_is_there_as_declared():
    """By its name, in as many bytes as the layout counts."""
    own = dflash_buffers(tiny_draft(), "bfloat16")
    buffers = engine_buffers(tiny_target(TINY_HYBRID_CONFIG), own, "bfloat16", num_drafts=3, max_model_len=300)
    layout = MemoryLayout(buffers, num_pages=4, num_seats=3, num_slots=5)
    tensors = allocate(layout, CPU)

    for buffer in buffers:
        tensor = tensors[buffer.name]
        assert (layout.shape(buffer), torch_dtype(buffer.dtype)) == (tuple(tensor.shape), tensor.dtype)
        assert not tensor.any()
    assert layout.num_bytes() == sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())


def test_one_name_for_two_buffers_is_a_mistake_of_ours():
    """One of them would be nobody's."""
    twice = (Buffer("part", "keys", "seat", (2,), "int64"), Buffer("part", "keys", "slot", (2,), "int64"))
    with pytest.raises(AssertionError, match="two buffers have one name"):
        allocate(MemoryLayout(twice, num_seats=2, num_slots=2), CPU)


def test_a_dtype_and_its_name_are_one():
    """Of those that engines run in, and of integers."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64):
        assert dtype == torch_dtype(dtype_name(dtype))


@pytest.mark.gpu
def test_what_lies_on_the_host_is_pinned():
    """So that copies to the device need not wait."""
    buffer = Buffer("pages", "spilled", "page", (8,), "float32", place="host")
    tensor = allocate(MemoryLayout((buffer,), num_pages=3), torch.device("cuda"))["spilled"]

    assert (torch.device("cpu"), True) == (tensor.device, tensor.is_pinned())
