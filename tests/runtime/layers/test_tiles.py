"""Which cuts a device gets: a file's over shipped ones, refused where it has no effect, and one line where there are none."""

import pytest
import torch

from paceline_kernels.skinny_linear import NO_TILES, Product, Tile, TileTable, shipped_tiles
from paceline_kernels.skinny_linear.tiles import to_json
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import build_engine
from paceline_runtime.errors import ConfigError
from paceline_runtime.layers import tiles
from paceline_runtime.layers.parameters import Parameters, all_dense
from paceline_runtime.layers.tiles import tiles_for

OWN = TileTable({Product(rows, 34816, 5120, "gated"): Tile(64, 64, 1, 8, 3) for rows in (1, 8, 16, 32, 64)})
BF16 = torch.bfloat16


def written(tmp_path, device):
    file = tmp_path / "own.json"
    file.write_text(to_json(OWN, device))
    return str(file)


def test_a_files_cuts_come_before_those_shipped(tmp_path):
    """And shipped ones of other products stay."""
    found, shipped = tiles_for("NVIDIA H200", BF16, written(tmp_path, "NVIDIA H200")), shipped_tiles("NVIDIA H200")
    known, other = Product(3, 34816, 5120, "gated"), Product(1, 5120, 17408, "parts")

    assert Tile(64, 64, 1, 8, 3) == found.tile(known) != shipped.tile(known)
    assert shipped.tile(other) == found.tile(other) is not None


def test_a_device_without_a_table_is_told_of_once(caplog, tmp_path):
    """With the command that makes one; a device with one, and one with a file, get no line."""
    assert NO_TILES == tiles_for("Abacus 3000", BF16, None)
    assert ["no cuts are shipped for Abacus 3000: "] == [line[:37] for line in caplog.messages]
    assert "paceline bench tune" in caplog.text
    caplog.clear()

    tiles_for("NVIDIA H200", BF16, None)
    assert OWN == tiles_for("Abacus 3000", BF16, written(tmp_path, "Abacus 3000"))
    assert [] == caplog.messages


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        (None, BF16, "no meaning on a CPU"),
        ("NVIDIA H200", torch.float32, "no meaning on float32"),
        ("Abacus", BF16, "H200.*Abacus"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, name, dtype, message):
    """By the flag's name."""
    with pytest.raises(ConfigError, match=f"--tiles .*{message}"):
        tiles_for(name, dtype, written(tmp_path, "NVIDIA H200"))


def test_an_engine_refuses_the_file_before_it_reads_weights(tmp_path, monkeypatch):
    """Not even the headers."""
    monkeypatch.setattr("paceline_runtime.engine.build.read_pair", lambda *args: pytest.fail("the checkpoint was read"))
    with pytest.raises(ConfigError, match=r"--tiles .* on a CPU"):
        build_engine(EngineConfig(model_path=str(tmp_path), device="cpu", tiles=written(tmp_path, "x")))


def test_weights_are_cut_as_their_storage_says():
    """From the table that a loader is given to every matrix."""
    parameters = Parameters(BF16, torch.device("cpu"), storage_of=all_dense(OWN))

    assert parameters.weight("one", 4, 4).tiles is OWN
    assert Parameters(BF16, torch.device("cpu")).weight("one", 4, 4).tiles == NO_TILES == tiles.shipped_for(torch.device("cpu"))
