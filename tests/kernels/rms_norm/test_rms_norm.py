"""RMS norm against its formula in float64."""

import pytest
import torch

from paceline_kernels.rms_norm import rms_norm


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_rms_norm_is_its_formula_computed_in_at_least_float32(dtype, tolerance):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3, 48).to(dtype), torch.randn(48).to(dtype)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
