"""Declared parameters: parts stored alike share a weight, others stay apart, and every part is filled by its own tensors."""

import weakref

import pytest
import torch
from scaled_rows import ScaledRows, ScaledWeight

from paceline_compat.errors import MetadataError
from paceline_compat.facts.records import MoeFacts
from paceline_compat.formats.tensors import TensorInfo
from paceline_runtime.layers.experts import mixture
from paceline_runtime.layers.mlp import GatedMlp, InterleavedMlp, gated_mlp
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.layers.weights.dense import Dense, DenseWeight
from paceline_runtime.loaders.fill import check_tensors, fill, fill_dummy

CPU = torch.device("cpu")
PARTS = {"q": 6, "k": 2, "v": 4}
COLUMNS = 8
MOE = MoeFacts(num_experts=4, num_experts_per_token=2, intermediate_size=6, shared_intermediate_size=6)


def parameters(**scaled):
    """Modules whose names are in `scaled` have bytes and scales of that origin, others plain values."""
    return Parameters(torch.float64, CPU, storage_of=lambda name: ScaledRows(scaled[name]) if scaled.get(name) else Dense())


def load(declared, tensors, read=None):
    """As a loader fills them from a checkpoint of these tensors."""
    stored = {name: TensorInfo(name, "F64", tuple(t.shape), "tiny", 0, t.nbytes) for name, t in tensors.items()}
    declared.settle(tensors.keys())
    check_tensors("tiny", stored, declared.shapes())
    fill("tiny", stored, declared, read or tensors.__getitem__)


def random_tensors(declared):
    """What a checkpoint may hold for these parameters."""
    return {name: torch.randint(1, 9, place.shape).to(torch.float64) for name, place in declared.places.items()}


def plain(name, tensors):
    """The matrix of a module, whichever way it is stored."""
    scales = tensors.get(f"{name}.weight_scale")
    return tensors[f"{name}.weight"] * (1.0 if scales is None else scales[:, None])


@pytest.mark.parametrize(
    "scaled, kinds",
    [
        ({}, [DenseWeight]),
        ({"q": "a", "k": "a", "v": "a"}, [ScaledWeight]),
        ({"v": "a"}, [DenseWeight, ScaledWeight]),
        ({"k": "a"}, [DenseWeight, ScaledWeight, DenseWeight]),
        ({"q": "a", "k": "b", "v": "b"}, [ScaledWeight, ScaledWeight]),
    ],
    ids=["plain", "all scaled", "last scaled", "middle scaled", "two kinds of scaled"],
)
@pytest.mark.parametrize("bias", [False, True])
def test_only_parts_that_are_stored_alike_are_joined(scaled, kinds, bias):
    """Whatever is joined, the outputs are those of the parts, in order."""
    declared = parameters(**scaled)
    linear = declared.linear(PARTS, COLUMNS, split="rows", bias=bias)
    tensors = random_tensors(declared)
    load(declared, tensors)

    assert kinds == [type(weight) for weight in linear.weights]
    assert sum(PARTS.values()) == linear.num_rows
    assert {f"{name}.weight_scale" for name in scaled} == {name for name in tensors if name.endswith("scale")}
    x = torch.randn(3, COLUMNS, dtype=torch.float64)
    parts = [x @ plain(name, tensors).T + (tensors[f"{name}.bias"] if bias else 0.0) for name in PARTS]
    torch.testing.assert_close(linear(x), torch.cat(parts, dim=-1))
    for start, stop in ((0, 12), (0, 6), (2, 7), (5, 9), (8, 12)):
        torch.testing.assert_close(linear.rows(start, stop)(x), linear(x)[:, start:stop])


@pytest.mark.parametrize("origin", ["", "a"], ids=["plain", "scaled"])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_in_turn_give_the_mlp_that_stacked_ones_give(origin, bias):
    """Each module's own tensors fill every second row, whichever way they are stored."""
    names = dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), origin)
    stacked, declared = parameters(**names), parameters(**names)
    expected = gated_mlp(stacked, "mlp", COLUMNS, 6, bias=bias)
    both = declared.interleaved("mlp.gate_proj", "mlp.up_proj", 6, COLUMNS, split="rows", bias=bias)
    interleaved = InterleavedMlp(both, declared.linear({"mlp.down_proj": COLUMNS}, 6, split="columns", bias=bias))
    tensors = random_tensors(declared)
    load(declared, tensors)
    load(stacked, tensors)

    x = torch.randn(3, COLUMNS, dtype=torch.float64)
    assert isinstance(expected, GatedMlp)
    assert stacked.memory_bytes() == declared.memory_bytes()
    torch.testing.assert_close(interleaved(x), expected(x))
    torch.testing.assert_close(interleaved.to_be_added(x), expected.to_be_added(x))


def test_bytes_are_counted_for_every_way_of_storing():
    declared = parameters(v="a")
    declared.linear(PARTS, COLUMNS, split="rows", bias=True)
    declared.norm("norm", COLUMNS, 1e-6)
    assert 8 * (8 * COLUMNS) + (4 * COLUMNS + 4 * 8) + 8 * 12 + 8 * COLUMNS == declared.memory_bytes()


def test_a_scale_that_is_missing_or_misshapen_is_named():
    declared = parameters(q="a", k="a")
    declared.linear(PARTS, COLUMNS, split="rows")
    tensors = random_tensors(declared)
    del tensors["q.weight_scale"]
    tensors["k.weight_scale"] = torch.ones(3)
    with pytest.raises(MetadataError, match=r"missing q.weight_scale \[6\]; k.weight_scale is \[3\] and must be \[2\]"):
        load(declared, tensors)


def test_a_scale_that_is_not_finite_is_named():
    declared = parameters(k="a")
    declared.linear(PARTS, COLUMNS, split="rows")
    tensors = random_tensors(declared)
    tensors["k.weight_scale"][1] = torch.inf
    with pytest.raises(MetadataError, match=r"NaN or infinite values.* in k.weight_scale"):
        load(declared, tensors)


def singles(layer="mlp"):
    return {f"{layer}.experts.{index}.{part}_proj": "a" for index in range(4) for part in ("gate", "up", "down")}


@pytest.mark.parametrize("scaled", [{}, singles()], ids=["plain", "scaled"])
@pytest.mark.parametrize("stacked", [False, True], ids=["one by one", "stacked"])
def test_experts_are_stored_stacked_or_one_by_one(scaled, stacked):
    declared = parameters(**scaled)
    experts = mixture(declared, "mlp", COLUMNS, MOE)
    if not stacked:
        declared.settle({"mlp.experts.0.up_proj.weight"})
    tensors = random_tensors(declared)
    load(declared, tensors)

    assert stacked == ("mlp.experts.gate_up_proj" in tensors)
    assert bool(scaled) == any(name.endswith("_scale") for name in tensors)
    if not stacked:
        up = experts.gate_up.take(2).take(slice(6, 12)).rows(torch.arange(6))
        assert torch.equal(plain("mlp.experts.2.up_proj", tensors), up)
    assert experts(torch.randn(5, COLUMNS, dtype=torch.float64), torch.ones(5, dtype=torch.bool)).isfinite().all()


def test_loading_holds_one_stored_tensor_beside_the_weights():
    """Each is let go of before the next is read."""
    declared = parameters(k="a")
    declared.linear(PARTS, COLUMNS, split="rows")
    tensors, alive, seen = random_tensors(declared), [], []

    def read(name):
        copy = tensors[name].clone()
        seen.append(sum(reference() is not None for reference in alive))
        alive.append(weakref.ref(copy))
        return copy

    load(declared, tensors, read)
    assert 4 * [0] == seen


def test_experts_that_are_stored_unlike_are_refused_by_name():
    """No product goes over matrices of two kinds, and they are too many to stay apart."""
    declared = parameters(**{"mlp.experts.2.up_proj": "a"})
    with pytest.raises(ValueError, match=r"mlp.experts.gate_up_proj.* stored alike.*Dense.*ScaledRows"):
        mixture(declared, "mlp", COLUMNS, MOE)


def test_a_place_knows_whether_a_tensor_is_what_it_holds():
    declared = parameters()
    declared.weight("embedding", 6, COLUMNS)
    tensors = random_tensors(declared)
    load(declared, tensors)
    place = declared.places["embedding.weight"]
    assert place.holds(tensors["embedding.weight"].clone())
    assert not place.holds(tensors["embedding.weight"] + 1)


def test_a_zero_centred_norm_keeps_digits_that_its_dtype_has_not():
    declared = Parameters(torch.bfloat16, CPU)
    norm = declared.norm("norm", 2, 1e-6, zero_centred=True)
    load(declared, {"norm.weight": torch.tensor([2.0**-12, 0.0])})
    assert [1 + 2.0**-12, 1.0] == norm.weight.tolist()
    assert torch.bfloat16 == norm(torch.ones(2, dtype=torch.bfloat16)).dtype


def test_dummies_fill_every_way_of_storing_with_finite_numbers():
    declared = parameters(k="a")
    linear = declared.linear(PARTS, COLUMNS, split="rows")
    fill_dummy(declared)
    out = linear(torch.ones(1, COLUMNS, dtype=torch.float64))
    assert out.isfinite().all()
    assert out.unique().numel() > 1
