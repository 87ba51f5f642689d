"""Rotary embeddings as rotations of pairs of entries."""

import pytest
import torch
from kernel_checks import DEVICES, half

from paceline_kernels.backend import Backend
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [8, 20, 64])
@pytest.mark.parametrize("scaling", [1.0, 1.375])
def test_the_kernels_table_is_that_of_exact_angles(width: int, scaling: float, device: str) -> None:
    """Up to 262,143 turns: an approximation that reduces no angle, as a GPU's own sine, is wrong there by 0.01 and more."""
    positions = torch.tensor([0, 1, 2, 3, 77, 4_095, 65_537, 105_616, 200_001, 262_142, 262_143], device=device)
    frequencies = (1e7 ** (-torch.arange(0, width, 2).float() / width)).to(device)
    table = rotary_table(positions, frequencies, scaling, torch.float32, backend=Backend.KERNEL)
    angles = (positions[:, None].float() * frequencies).double()
    cos, sin = angles.cos() * scaling, angles.sin() * scaling

    assert (len(positions), 1, width) == table.cos.shape == table.sin.shape
    torch.testing.assert_close(table.cos[:, 0].double(), torch.cat((cos, cos), -1), atol=3e-7, rtol=0)
    torch.testing.assert_close(table.sin[:, 0].double(), torch.cat((-sin, sin), -1), atol=3e-7, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_the_kernels_table_is_the_references(device: str) -> None:
    """In 16 bits, of any rows of a wider table of positions; float64 is the reference's alone."""
    positions = torch.randint(0, 262_144, (5, 2), device=device)[:, 1]
    frequencies = (1e6 ** (-torch.arange(0, 24, 2).float() / 24)).to(device)
    found = [rotary_table(positions, frequencies, 1.0, half(device), backend=b) for b in (Backend.REFERENCE, Backend.KERNEL)]
    step = 2**-8 if device == "cuda" else 2**-11

    for name in ("cos", "sin"):
        expected, actual = (getattr(table, name) for table in found)
        assert expected.dtype == actual.dtype == half(device)
        torch.testing.assert_close(expected, actual, atol=1e-6, rtol=step)
    assert torch.float64 == rotary_table(positions, frequencies, 1.0, torch.float64, backend=Backend.KERNEL).cos.dtype
