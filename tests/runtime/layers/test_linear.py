"""Linear layers: the values of a product whatever kernel makes it."""

import pytest
import torch

from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.weights.dense import DenseWeight


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (70, 48), (2, 5, 48)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_dense_product_keeps_the_precision_of_its_dtype(dtype, tolerance, shape, has_bias):
    x, weight = torch.randn(shape).to(dtype), torch.randn(33, 48).to(dtype)
    bias = torch.randn(33).to(dtype) if has_bias else None
    out = Linear(DenseWeight(weight), bias=bias)(x)
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0.0)
    assert out.dtype == dtype
    assert (out.double() - expected).norm() <= tolerance * expected.norm()


def test_rows_of_a_layer_are_a_layer_over_the_same_memory():
    whole = Linear(DenseWeight(torch.randn(8, 5, dtype=torch.float64)), bias=torch.randn(8, dtype=torch.float64))
    x = torch.randn(3, 5, dtype=torch.float64)
    part = whole.rows(2, 6)
    torch.testing.assert_close(part(x), whole(x)[:, 2:6])
    assert part.weights[0].data.data_ptr() == whole.weights[0].data[2:].data_ptr()
