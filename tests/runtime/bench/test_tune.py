"""`paceline bench tune` without a GPU: what it asks of a shape, which cuts it tries, how it chooses, and what it writes."""

import json
import pickle

import pytest
import torch
from bench_flags import TINY_SHAPE, parse
from kernel_checks import half

from paceline_kernels.backend import Backend
from paceline_kernels.skinny_linear import Product, Tile, skinny_gated_linear, skinny_linear
from paceline_kernels.skinny_linear.tiles import ROW_BUCKETS, read_tiles, to_json
from paceline_runtime import bench
from paceline_runtime.bench.shapes import SHAPES
from paceline_runtime.bench.tune import Tuner, rows_of, table_of, to_dict, tune_all
from paceline_runtime.bench.tuning.candidates import candidates
from paceline_runtime.bench.tuning.choice import Timing, Tuned, tune
from paceline_runtime.bench.tuning.matrices import Matrix, Questions, matrices_of
from paceline_runtime.bench.tuning.precompile import compile_one, jobs
from paceline_runtime.bench.tuning.trial import DeviceTrial, Place, is_unable
from paceline_runtime.errors import ConfigError
from paceline_runtime.layers.parameters import Parameters

ROWS = (1, 8, 32, 64)
MATRIX = Matrix("whole", 4096, 1024)
A, B, C, D = (Tile(rows, 128, splits, 4, 4) for rows, splits in ((32, 1), (64, 1), (32, 2), (64, 2)))
CPU = torch.device("cpu")
DENSE = {**TINY_SHAPE, "vocab_size": 98}


class FakeTrial:
    """Times and sums by tile: `times[tile]` is a number for all rows, or one for each of `ROWS`; None cannot run."""

    def __init__(self, times, sums, library=10.0):
        self.times, self.values, self.library = times, sums, library

    def sums(self, tile):
        return torch.tensor([self.values[tile]])

    def seconds(self, rows, tile):
        found = self.library if tile is None else self.times[tile]
        return found[ROWS.index(rows)] if isinstance(found, tuple) else found


def test_one_class_is_chosen_for_all_rows():
    """A is fastest at one row and B at 64, but each sums in an order of its own; C and D agree, and do best together."""
    times = {A: (1.0, 9.0, 9.0, 9.0), B: (9.0, 9.0, 9.0, 1.0), C: (3.0, 3.0, 8.0, 8.0), D: (4.0, 4.0, 5.0, 5.0)}
    found = tune(MATRIX, ROWS, FakeTrial(times, {A: 1.0, B: 2.0, C: 3.0, D: 3.0}), [A, B, C, D])

    assert 3 == found.num_classes
    assert [C, C, D, D] == [found.timings[rows].tile for rows in ROWS]
    assert [3.0, 3.0, 5.0, 5.0] == [found.timings[rows].seconds for rows in ROWS]


def test_the_same_bits_in_another_number_of_parts_are_another_class():
    """They are the same by chance: with other weights they would not be."""
    times = {A: (1.0, 1.0, 9.0, 9.0), C: (9.0, 9.0, 1.0, 1.0)}

    assert 2 == tune(MATRIX, ROWS, FakeTrial(times, {A: 1.0, C: 1.0}), [A, C]).num_classes


def test_a_class_that_cannot_run_at_some_rows_is_no_class_for_all():
    """However fast it is at the others; without any, everything goes to the library."""
    times = {A: (1.0, 1.0, 1.0, None), C: 8.0}
    found = tune(MATRIX, ROWS, FakeTrial(times, {A: 1.0, C: 2.0}), [A, C])
    none = tune(MATRIX, ROWS, FakeTrial({A: None}, {A: 1.0}), [A])

    assert {C} == {timing.tile for timing in found.timings.values()}
    assert {None} == set(none.cuts().values())
    assert set(ROW_BUCKETS) == {product.rows for product in none.cuts()}


@pytest.mark.parametrize(("seconds", "tile"), [(10.0, A), (10.5, A), (10.7, None)])
def test_the_library_takes_over_where_it_is_clearly_faster(seconds, tile):
    """By more than 6 %."""
    found = tune(MATRIX, (1,), FakeTrial({A: seconds}, {A: 1.0}), [A])

    assert tile == found.timings[1].tile


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({1: A, 8: B, 32: C, 64: D}, [A, B, B, C, D]),
        ({1: A, 64: D}, [A, A, A, D, D]),
        ({32: C}, [C, C, C, C, None]),
        ({16: B}, [B, B, B, None, None]),
        ({1: A, 8: B, 16: C, 32: C, 64: D}, [A, B, C, C, D]),
    ],
)
def test_every_bucket_has_a_cut_with_room_for_its_rows(measured, expected):
    """Of fewer rows where the kernel is the same, else of more; beyond what was measured the library."""
    cuts = Tuned(MATRIX, {rows: Timing(tile, 1.0, 1.0) for rows, tile in measured.items()}, 1).cuts()

    assert expected == [cuts[Product(rows, 4096, 1024, "whole")] for rows in ROW_BUCKETS]


def test_candidates_cut_all_columns_and_what_is_large_in_one_part():
    """And there are some for every product of a 27B model."""
    shapes = [("gated", 34816, 5120), ("parts", 5120, 17408), ("whole", 16480, 5120), ("whole", 256, 5120), ("whole", 96, 2048)]
    for matrix in (Matrix(*shape) for shape in shapes):
        tiles = list(candidates(matrix))
        assert len(tiles) >= 5
        assert len(set(tiles)) == len(tiles)
        assert all(matrix.columns % (tile.columns * tile.splits) == 0 for tile in tiles)
        assert ({1} == {tile.splits for tile in tiles}) == (matrix.outputs > 10_000)
    assert [] == list(candidates(Matrix("whole", 100, 100)))


def test_each_kernel_is_compiled_once():
    """Neither the outputs nor the number of parts make another one."""
    matrices = [Matrix("whole", 4096, 1024), Matrix("whole", 8192, 1024), Matrix("gated", 8192, 1024)]
    found = jobs(matrices, (1, 8), lambda matrix: [A, Tile(32, 128, 4, 4, 4), Tile(32, 128, 8, 4, 4)])

    assert 2 * 2 * 2 == len(found)
    assert {1024} == {job.matrix.outputs for job in found}


@pytest.mark.parametrize("kind", ["whole", "parts", "gated"])
def test_a_trial_multiplies_as_layers_do(kind):
    """In the interpreter: the cut's own kernel, once a weight, on a clock that tells how often it was asked."""
    calls = []
    place = Place(CPU, half("cpu"), Backend.KERNEL)

    def clock(call):
        calls.append(call())
        return float(len(calls[-1]))

    matrix, tile = Matrix(kind, 32, 64), Tile(16, 16, 2, 4, 2)
    trial = DeviceTrial(matrix, place, clock, num_bytes=3 * 32 * 64 * 2)
    x, weights = trial._x[:8], trial._weights
    face = skinny_gated_linear if kind == "gated" else skinny_linear
    expected = face(x, weights[0], tiles=table_of([]), backend=Backend.REFERENCE)

    assert 3 == len(weights)
    assert torch.allclose(expected.float(), trial.sums(tile).float(), atol=2e-2)
    assert 1.0 == trial.seconds(8, tile) == trial.seconds(8, None)
    cut, library = calls
    assert ((2, 8, 32) if kind == "parts" else tuple(expected.shape)) == tuple(cut[0].shape)
    assert torch.equal(expected, library[0])

    assert compile_one(jobs([matrix], (8,), lambda matrix: [tile])[0], place)


def test_only_what_the_device_lacks_makes_a_cut_unfit():
    """Memory that is full, and shapes that are wrong, say nothing of it."""
    from triton.runtime.errors import OutOfResources

    assert is_unable(OutOfResources(300, 200, "shared memory"))
    assert is_unable(RuntimeError("PassManager::run failed"))
    assert not is_unable(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_unable(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_questions_are_remembered_once_and_without_rows():
    """Products of many rows are nobody's to cut."""
    questions = Questions({})
    x, weight = torch.zeros(8, 64, dtype=half("cpu")), torch.zeros(32, 64, dtype=half("cpu"))
    for rows in (1, 8):
        skinny_gated_linear(x[:rows], weight, tiles=questions, backend=Backend.KERNEL)
    skinny_linear(x.repeat(9, 1), weight, tiles=questions, backend=Backend.KERNEL)

    assert [Matrix("gated", 32, 64)] == list(questions.asked)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The choices that a model makes on one: products ask for cuts, and gate and up lie in turn."""
    monkeypatch.setattr("paceline_kernels.skinny_linear.runs_kernel", lambda *args: True)
    monkeypatch.setattr(Parameters, "interleaves", lambda *args: True)


def asked_of(folder, config, algorithms):
    """What a shape's decode steps multiply by."""
    (folder / "config.json").write_text(json.dumps(config))
    words = ("--shape", str(folder), "--device", "cpu", "--dtype", "bfloat16", "--dummy-weights")
    return matrices_of(parse("tune", *words, "--algorithms", algorithms))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_shape_is_asked_for_all_products_of_target_and_draft(tmp_path):
    """Each matrix of a decode step once; the draft's only with its algorithm."""
    off, both = (asked_of(tmp_path, DENSE, algorithms) for algorithms in ("off", "off,dflash"))

    dense = {("whole", 128, 64), ("parts", 64, 64), ("gated", 192, 64), ("parts", 64, 96), ("whole", 98, 64)}
    assert {Matrix(*shape) for shape in dense} == set(off)
    assert off == both[: len(off)]
    assert len(both) > len(off)
    assert len(set(both)) == len(both)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_mixture_and_its_own_head_are_asked(tmp_path):
    """Routers and shared experts too; the head's projection of two rows of hidden values is its own."""
    cut = SHAPES["qwen3.6-35b-a3b"].with_layers(4)
    sizes = dict(hidden_size=64, num_attention_heads=2, linear_num_key_heads=1, linear_num_value_heads=2, vocab_size=98)
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
    cut.target["text_config"].update(sizes, **experts, eos_token_id=[1])
    off, both = (set(asked_of(tmp_path, cut.target, algorithms)) for algorithms in ("off", "off,mtp"))

    assert 8 in {matrix.outputs for matrix in off}
    assert {Matrix("whole", 64, 128)} == both - off


def test_what_was_found_is_a_table_for_the_device(tmp_path, capsys):
    """Written, read again, printed and in the JSON; matrices that nothing cuts are the library's."""
    matrices = [MATRIX, Matrix("whole", 100, 100)]

    class Trial:
        def sums(self, tile):
            return torch.tensor([float(tile.columns)])

        def seconds(self, rows, tile):
            return 10e-6 if tile is None else 5e-6 + 1e-9 * tile.rows

    found = tune_all(matrices, ROWS, lambda matrix: Trial())
    file = tmp_path / "own.json"
    file.write_text(to_json(table_of(found), "a device"))
    rows = [row for tuned in found for row in rows_of(tuned, torch.bfloat16)]

    assert table_of(found) == read_tiles(file, "a device")
    assert 10 == len(table_of(found).cuts)
    assert ("whole 4096x1024", "1", "5.0", "1.67", "10.0", "32x128, 1 parts, 4 warps, 6 stages") == rows[0]
    assert ("whole 100x100", "64", "10.0", "0.00", "10.0", "library") == rows[-1]
    assert {"rows": 64, "cut_s": None, "library_s": 10e-6, "tile": "library"} == to_dict(found[1])["rows"][-1]
    assert "2 of 2: whole 100x100, 0 different sums" in capsys.readouterr().out


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_shape_becomes_a_file(tmp_path, capsys):
    """All of it but the GPU: products asked, kernels compiled and run in the interpreter, times of a fake clock, the table."""
    wide = {**DENSE, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(wide))
    out, figures = tmp_path / "own.json", tmp_path / "figures.json"
    args = parse("tune", "--shape", str(tmp_path), "--device", "cpu", "--dtype", "bfloat16", "--json", str(figures))
    compiled = []

    def compile_here(some, place):
        compiled.extend(pickle.loads(pickle.dumps((job, place))) for job in some)
        return sum(not compile_one(job, place) for job in some[:2])

    Tuner("a device", Place(CPU, half("cpu"), Backend.KERNEL), lambda call: 4e-3, compile_here).measure(args, out)

    written, printed = read_tiles(out, "a device"), capsys.readouterr().out
    products = json.loads(figures.read_text())["products"]
    assert 5 == len(products)
    assert 5 * len(ROW_BUCKETS) == len(written.cuts)
    assert None not in written.cuts.values()
    assert {"whole", "parts", "gated"} == {product.kind for product in written.cuts} == {one["kind"] for one in products}
    assert len(compiled) == len(jobs([job.matrix for job, _ in compiled], ROWS, candidates)) > 0
    assert 1 == printed.count("0 of them cannot run here")
    assert 5 * len(ROWS) == printed.count(" stages")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cpu"), "--device cpu: products are cut for GPUs"),
        (("--device", "cpu", "--dtype", "float32"), "--dtype float32: only products of float16 and bfloat16"),
    ],
)
def test_what_has_no_cuts_is_refused_by_name(words, message):
    """Before a model is made."""
    with pytest.raises(ConfigError, match=message):
        bench.run(parse("tune", "--shape", "qwen3.8-27b", *words))


def test_rows_that_no_table_holds_are_refused(capsys):
    """With those that it does; the flag's own list is the kernels'."""
    everything = ",".join(map(str, ROW_BUCKETS))

    assert ROW_BUCKETS == parse("tune", "--shape", "x", "--rows", everything).rows
    with pytest.raises(SystemExit):
        parse("tune", "--shape", "x", "--rows", "1,7")
    assert "7: not of 1, 8, 16, 32, 64" in capsys.readouterr().err
