"""Rotary embeddings as rotations of pairs of entries."""

import pytest
import torch

from paceline_kernels.rotary import apply_rotary, rotary_table


@pytest.mark.parametrize("width", [8, 16])
def test_each_pair_is_rotated_by_its_angle_and_the_rest_passes(width):
    torch.manual_seed(0)
    x, positions = torch.randn(7, 3, 16, dtype=torch.float64), torch.tensor([0, 1, 2, 9, 100, 5000, 7])
    frequencies = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
    out = apply_rotary(x, rotary_table(positions, frequencies, 1.0, torch.float64))
    half = width // 2
    pairs = torch.complex(x[..., :half], x[..., half:width])
    angles = (positions[:, None].float() * frequencies).double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(out[..., :half], turned.real, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(out[..., half:width], turned.imag, atol=1e-6, rtol=1e-6)
    assert torch.equal(out[..., width:], x[..., width:])


def test_scaling_multiplies_the_rotated_part():
    x, frequencies = torch.randn(1, 1, 4), torch.tensor([1.0, 0.1])
    plain, scaled = (apply_rotary(x, rotary_table(torch.tensor([3]), frequencies, s, x.dtype)) for s in (1.0, 1.5))
    torch.testing.assert_close(scaled, 1.5 * plain)
