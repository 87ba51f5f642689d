"""What every way of storing a matrix does: multiply, look up rows, be cut, count its bytes, take what a checkpoint holds."""

import pytest
import torch
from scaled_rows import ScaledRows

from paceline_runtime.layers.weights.base import ALL
from paceline_runtime.layers.weights.dense import Dense, DensePlace, DenseWeight

CPU = torch.device("cpu")
ROWS, COLUMNS, COUNT = 12, 8, 3
BYTES = {Dense: ROWS * COLUMNS * 8, ScaledRows: ROWS * COLUMNS + ROWS * 8}


@pytest.fixture(params=[Dense, ScaledRows])
def storage(request):
    return request.param()


def filled(made, name="m"):
    """A weight or stack whose places were given random numbers that its way of storing can hold."""
    for place in made.places(name).values():
        place.fill(torch.randint(1, 9, place.shape).to(torch.float64))
    return made


@pytest.fixture
def weight(storage):
    return filled(storage.empty(ROWS, COLUMNS, torch.float64, CPU))


@pytest.fixture
def stack(storage):
    return filled(storage.empty_stack(COUNT, ROWS, COLUMNS, torch.float64, CPU))


def matrix(weight):
    """The plain values."""
    return weight.rows(torch.arange(weight.shape[0]))


@pytest.mark.parametrize("shape", [(COLUMNS,), (1, COLUMNS), (2, 5, COLUMNS)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_the_plain_values(weight, shape, has_bias):
    x, bias = torch.randn(shape, dtype=torch.float64), torch.randn(ROWS, dtype=torch.float64) if has_bias else None
    expected = x @ matrix(weight).T + (bias if has_bias else 0.0)
    torch.testing.assert_close(weight.matmul(x, bias), expected)


def test_a_product_to_be_added_adds_up_to_the_product(weight):
    """It may come in parts [P, N, rows]."""
    x = torch.randn(5, COLUMNS, dtype=torch.float64)
    parts = weight.matmul_to_add(x)
    torch.testing.assert_close(parts if parts.dim() == 2 else parts.sum(0).to(x.dtype), weight.matmul(x))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_gated_product_takes_gates_and_ups_in_turn(weight, has_bias):
    x, bias = torch.randn(5, COLUMNS, dtype=torch.float64), torch.randn(ROWS, dtype=torch.float64) if has_bias else None
    gate, up = weight.matmul(x, bias).unflatten(1, (-1, 2)).unbind(-1)
    torch.testing.assert_close(weight.matmul_gated(x, bias), torch.nn.functional.silu(gate) * up)


def test_rows_are_looked_up_in_any_shape(weight):
    ids = torch.tensor([[3, 0], [11, 3]])
    assert torch.equal(torch.stack([torch.stack([matrix(weight)[i] for i in row]) for row in ids]), weight.rows(ids))


def test_the_bytes_are_those_that_are_stored(weight, stack, storage):
    assert BYTES[type(storage)] == weight.num_bytes
    assert COUNT * BYTES[type(storage)] == stack.num_bytes
    assert ((ROWS, COLUMNS), (COUNT, ROWS, COLUMNS)) == (weight.shape, stack.shape)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(4, 12), slice(3, 4), ALL])
def test_a_part_multiplies_as_its_rows_and_shares_their_memory(weight, rows):
    part, x = weight.take(rows), torch.randn(4, COLUMNS, dtype=torch.float64)
    torch.testing.assert_close(part.matmul(x), weight.matmul(x)[:, rows])
    assert part.num_bytes * ROWS == weight.num_bytes * part.shape[0]
    for place in part.places("m").values():
        place.fill(torch.full(place.shape, 5))
    assert torch.equal(matrix(weight)[rows], matrix(part))
    assert matrix(part).unique().numel() == 1


def test_columns_of_dense_values_are_a_weight_whose_products_add_up():
    weight, x = DenseWeight(torch.randn(ROWS, COLUMNS)), torch.randn(4, COLUMNS)
    left, right = weight.take(columns=slice(0, 3)), weight.take(columns=slice(3, COLUMNS))
    assert (ROWS, 3) == left.shape
    torch.testing.assert_close(left.matmul(x[:, :3]) + right.matmul(x[:, 3:]), weight.matmul(x))


def test_a_stack_multiplies_each_group_by_its_own_matrix(stack):
    x, ends = torch.randn(9, COLUMNS, dtype=torch.float64), torch.tensor([2, 2, 7], dtype=torch.int32)
    expected = [stack.take(index).matmul(row) for index, row in zip([0, 0, 2, 2, 2, 2, 2], x[:7], strict=True)]
    expected += 2 * [torch.zeros(ROWS, dtype=torch.float64)]
    torch.testing.assert_close(stack.matmul(x, ends), torch.stack(expected))


def test_one_matrix_of_a_stack_is_filled_like_any_other(stack):
    for place in stack.take(1).places("m").values():
        place.fill(torch.full(place.shape, 3))
    assert matrix(stack.take(1)).unique().numel() == 1
    assert matrix(stack.take(0)).unique().numel() > 1


def test_dummies_are_finite_and_what_is_not_finite_is_found(weight):
    generator = torch.Generator().manual_seed(0)
    places = weight.places("m")
    for place in places.values():
        place.fill_dummy(generator)
        assert place.is_finite()
    assert matrix(weight).isfinite().all()
    assert matrix(weight).unique().numel() > 1
    floats = [place for place in places.values() if place.view.is_floating_point()]
    for place in floats:
        place.fill(torch.full(place.shape, torch.nan))
    assert len(floats) == sum(not place.is_finite() for place in places.values()) > 0


@pytest.mark.parametrize("num_rows", [3, 5000])
def test_a_place_knows_what_it_was_given(num_rows):
    stored = torch.randn(num_rows, 2, dtype=torch.float64)
    place = DensePlace(torch.empty(num_rows, 2))
    place.fill(stored)
    assert place.holds(stored)
    assert not place.holds(stored[:-1])
    stored[-1, -1] += 1
    assert not place.holds(stored)
