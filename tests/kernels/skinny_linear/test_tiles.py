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


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "tiles.json"
    file.write_text(to_json(TABLE, "a device"))
    assert read_tiles(file) == TABLE


@pytest.mark.parametrize("text", ["", "[]", '{"products": [{"tile": 3}]}', '{"products": [{"product": {}, "tile": null}]}'])
def test_a_broken_table_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tiles.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"tiles\.json is no table of tiles"):
        read_tiles(file)


def test_an_unknown_device_has_no_table() -> None:
    assert shipped_tiles("Abacus 3000") == NO_TILES
