"""What is said of a GPU's trace: busy once where kernels overlap, idle between them, and the part that each belongs to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from source_tree import nodes
from torch.profiler import ProfilerActivity

from paceline_runtime.bench.parts import parts_of, profile_rows
from paceline_runtime.bench.trace import KernelTime, StepTrace, busy_s, read_trace, record, trace_steps
from paceline_runtime.bench.traffic import StepTraffic

CPU = torch.device("cpu")
TRAFFIC = StepTraffic(weight_bytes=900, draft_bytes=100, kv_bytes=50, state_bytes=0, num_experts=0.0)


def event(category, name, begin, length):
    """One event as torch's profiler writes it, in microseconds from some moment."""
    return {"ph": "X", "cat": category, "name": name, "ts": 5.27e12 + begin, "dur": float(length), "pid": 0, "tid": 7}


def traced(**seconds):
    """A trace of kernels that are launched twice a step."""
    kernels = tuple(KernelTime(name, 2.0, each) for name, each in seconds.items())
    return StepTrace(8, sum(seconds.values()), 0.0, 2.0 * len(kernels), kernels)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_a_moment_is_busy_once(spans):
    """Whatever overlaps, touches, lies inside or comes out of order."""
    moments = {moment for begin, length in spans for moment in range(begin, begin + length)}

    assert len(moments) == busy_s([(begin, begin + length) for begin, length in spans])


def test_a_trace_says_what_a_step_took():
    """Two steps of 100 us with 30 us between them: copies keep the device busy, marks and the host's calls do not."""
    marks = [event("gpu_user_annotation", "step", 0, 230), event("cuda_runtime", "cudaGraphLaunch", 0, 400)]
    steps = [
        one
        for begin in (0, 130)
        for one in (
            event("kernel", "stream", begin, 60),
            event("kernel", "_add_norm", begin + 50, 40),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", begin + 90, 10),
        )
    ]
    found = read_trace([{"ph": "M", "name": "process_name"}, *marks, *steps], num_steps=2)

    assert 100e-6 == pytest.approx(found.busy_s, rel=1e-3)
    assert 30 / 230 == pytest.approx(found.idle_share, rel=1e-3)
    assert 2 == found.num_kernels
    assert ["stream", "_add_norm", "Memcpy DtoH (Device -> Pinned)"] == [kernel.name for kernel in found.kernels]
    assert [1, 1, 1] == [kernel.launches for kernel in found.kernels]
    assert [60e-6, 40e-6, 10e-6] == pytest.approx([kernel.seconds for kernel in found.kernels])


def test_a_trace_without_a_kernel_is_refused():
    """It would say that nothing takes no time."""
    with pytest.raises(ValueError, match="recorded no kernel"):
        read_trace([event("cuda_runtime", "cudaGraphLaunch", 0, 5)], 1)


def test_the_profiler_records_what_is_read():
    """On a CPU too, where the events are the host's and there is no device to tell of."""
    events = record(lambda: torch.ones(8) + 1, CPU, ProfilerActivity.CPU)
    ours = [one for one in events if one.get("name") == "aten::add"]

    assert len(ours) == 1
    assert "cpu_op" == ours[0]["cat"]
    assert 0 < ours[0]["dur"] < ours[0]["ts"]
    assert trace_steps(lambda: None, 1, CPU) is None


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("nvjet_tst_128x64_64x10_1x2_h_bz_splitK_TNT", "matrices"),
        ("stream", "matrices"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "matrices"),
        ("_attend_part", "attention"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<256>>", "attention"),
        ("verify_chunk", "recurrent states"),
        ("_verify_conv", "recurrent states"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "choices"),
        ("_add_norm", "activations and the rest"),
        ("Memcpy DtoH (Device -> Pinned)", "activations and the rest"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>>", "activations and the rest"),
    ],
)
def test_a_kernel_belongs_to_a_part(kernel, part):
    """By its name, ours and the libraries'."""
    (found,) = parts_of(traced(**{kernel: 1e-6}), TRAFFIC)

    assert part == found.name


def test_parts_are_known_by_names_that_exist():
    """A kernel of ours that was renamed would fall among the rest unseen."""
    ours = {"stream", "sum_splits", "verify_row", "verify_chunk", "normalise", "_verify_conv", "_prepare_rows", "_finish_rows"}
    ours |= {"_attend_part", "_sum_parts", "_join_parts", "_select_path", "_block_maxima", "_pick"}
    functions = {node.name for node in nodes("paceline_kernels") if hasattr(node, "decorator_list")}

    assert ours <= functions
    assert "activations and the rest" not in {part.name for part in parts_of(traced(**dict.fromkeys(ours, 1e-6)), TRAFFIC)}


def test_a_part_stands_beside_its_bytes():
    """Weights and drafts move through matrices, K/V through attention; activations have no limit."""
    trace = traced(stream=2.0, sum_splits=0.5, _attend_part=0.1, _add_norm=0.2)
    matrices, rest, attention = parts_of(trace, TRAFFIC)

    assert ("matrices", 1000, 2.5, 4) == (matrices.name, matrices.num_bytes, matrices.seconds, matrices.launches)
    assert 1000 / 500 / 2.5 == matrices.share_of_limit(500.0)
    assert 50 == attention.num_bytes
    assert rest.num_bytes is rest.share_of_limit(500.0) is None


def test_a_profile_lists_every_kernel_once():
    """Parts with their kernels, those of little time together; the times of the parts are all of the time."""
    trace = traced(stream=2.0, sum_splits=0.001, _attend_part=0.5, _add_norm=0.001, fill=0.001)
    rows = profile_rows(parts_of(trace, TRAFFIC), 500.0)

    assert ["matrices", ". stream", ". 1 more", "attention", ". _attend_part"] == [row[0] for row in rows[:5]]
    assert ["activations and the rest", ". 2 more"] == [row[0] for row in rows[5:]]
    assert ("0.00", "1.00") == rows[0][4:]
    assert ("-", "-") == rows[5][4:]
    assert 1 == pytest.approx(sum(float(row[3]) for row in rows if not row[0].startswith(".")), abs=2e-3)
