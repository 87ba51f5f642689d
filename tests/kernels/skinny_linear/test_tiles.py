"""Which cut a product gets: measured ones first, neighbours for the rest, torch's library where nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_kernels.skinny_linear.tiles import NO_TILES, Product, Tile, TileTable, read_tiles, shipped_tiles, to_json

ONE, OTHER = Tile(64, 128, 1, 4, 4), Tile(32, 256, 2, 4, 3)
TABLE = TileTable(
    {
        Product(1, 100, 10, "whole"): ONE,
        Product(1, 400, 10, "whole"): OTHER,
        Product(8, 100, 10, "whole"): None,
        Product(8, 100, 10, "gated"): OTHER,
    }
)


def test_rows_are_served_by_the_next_measured_number() -> None:
    """Too many rows are never cut."""
    assert TABLE.tile(Product(1, 100, 10, "whole")) == ONE
    assert TABLE.tile(Product(5, 100, 10, "gated")) == OTHER
    assert TABLE.tile(Product(65, 100, 10, "whole")) is None


def test_a_product_that_nobody_measured_is_cut_as_its_neighbour() -> None:
    assert TABLE.tile(Product(1, 120, 12, "whole")) == ONE
    assert TABLE.tile(Product(1, 390, 9, "whole")) == OTHER


def test_the_library_keeps_what_it_was_faster_at_and_what_is_unknown() -> None:
    assert TABLE.tile(Product(8, 100, 10, "whole")) is None
    assert TABLE.tile(Product(8, 100, 10, "parts")) is None
    assert NO_TILES.tile(Product(1, 100, 10, "whole")) is None


def test_a_table_over_another_keeps_its_matrices_whole() -> None:
    """Also at rows that it does not know: the other's cut could give a row other sums there."""
    own = TileTable({Product(8, 100, 10, "whole"): OTHER})
    both = own.over(TABLE)

    assert OTHER == both.cuts[Product(8, 100, 10, "whole")]
    assert Product(1, 100, 10, "whole") not in both.cuts
    assert OTHER == both.cuts[Product(1, 400, 10, "whole")] == both.cuts[Product(8, 100, 10, "gated")]
    assert TABLE == NO_TILES.over(TABLE) == TABLE.over(NO_TILES)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "tiles.json"
    file.write_text(to_json(TABLE, "a device"))
    assert TABLE == read_tiles(file, "a device")


def test_another_devices_table_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "tiles.json"
    file.write_text(to_json(TABLE, "a device"))
    with pytest.raises(
        ValueError, match=r"tiles\.json was measured on another device \(a device\) than this one \(my device\)"
    ):
        read_tiles(file, "my device")


GOOD = to_json(TABLE, "a device")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"products": []}',
        '{"device": "a device", "products": [{"tile": 3}]}',
        '{"device": "a device", "products": [{"product": {}, "tile": null}]}',
        GOOD.replace('"rows": 1,', '"rows": 2,'),
        GOOD.replace('"whole"', '"half"'),
        GOOD.replace('"outputs": 100', '"outputs": "100"'),
        GOOD.replace('"warps": 4', '"warps": 3'),
        GOOD.replace('"splits": 2', '"splits": 0'),
        GOOD.replace('"rows": 64', '"rows": 8'),
        GOOD.replace('"weights_left": false', '"weights_left": 1'),
        GOOD.replace('"stages": 4, ', ""),
    ],
)
def test_a_broken_table_is_named(text: str, tmp_path: Path) -> None:
    assert text != GOOD
    file = tmp_path / "tiles.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"tiles\.json is no table of tiles"):
        read_tiles(file, "a device")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json is no table of tiles .*No such file"):
        read_tiles(tmp_path / "nowhere.json", "a device")


def test_what_is_shipped_can_be_read() -> None:
    assert shipped_tiles("NVIDIA H200").cuts


def test_an_unknown_device_has_no_table() -> None:
    assert shipped_tiles("Abacus 3000") == NO_TILES
