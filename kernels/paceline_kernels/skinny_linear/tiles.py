"""How products of few rows are cut on a device: measured figures, shipped for an H200 and written by `paceline bench tune`.

Layers read it when a model is built; the face asks it at every launch. It refuses to know torch: a product is four numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["whole", "parts", "gated"]
"""What becomes of a product: rows for the next layer, sums that something adds, or the activation of neighbouring outputs."""
MAX_ROWS = 64
"""Arithmetic bounds a product of more rows, and torch's library is better at that."""
ROW_BUCKETS = (1, 8, 16, 32, 64)
"""Rows are measured at these and served by the next larger one."""
_LEAST_SIDE = 16
"""Of a tile: what a matrix unit takes."""
_SHIPPED = Path(__file__).parent / "measured"


@dataclass(frozen=True)
class Tile:
    """How one product is cut: weight rows and columns at a time, parts of the columns, warps and pipeline stages.

    `weights_left`: weights are the left operand, for which a Hopper GPU has larger instructions; sums are the same.
    """

    rows: int
    columns: int
    splits: int
    warps: int
    stages: int
    weights_left: bool = False


@dataclass(frozen=True)
class Product:
    """x [rows, columns] times a matrix [outputs, columns]."""

    rows: int
    outputs: int
    columns: int
    kind: Kind

    @property
    def bucket(self) -> int | None:
        """The number of rows that stands for this one's; None for too many."""
        return next((bucket for bucket in ROW_BUCKETS if self.rows <= bucket), None)


@dataclass(frozen=True)
class TileTable:
    """Cuts of products whose rows are a bucket; None where torch's library was faster.

    A product that was not measured is cut as its nearest measured neighbour with as many rows, in the size of the matrix.
    """

    cuts: Mapping[Product, Tile | None]

    def tile(self, product: Product) -> Tile | None:
        """The cut of this product; None sends it to torch's library."""
        bucket = product.bucket
        if bucket is None:
            return None
        measured = replace(product, rows=bucket)
        if measured in self.cuts:
            return self.cuts[measured]
        near = [other for other in self.cuts if (other.rows, other.kind) == (bucket, product.kind)]
        return self.cuts[min(near, key=lambda other: _distance(other, product))] if near else None

    def over(self, other: TileTable) -> TileTable:
        """These cuts, and another table's of matrices that this one does not know.

        A matrix is one table's for all numbers of rows: cuts of two could give a row other sums beside other rows.
        """
        known = {_matrix(product) for product in self.cuts}
        return TileTable({**{one: cut for one, cut in other.cuts.items() if _matrix(one) not in known}, **self.cuts})


NO_TILES = TileTable({})
"""Every product goes to torch's library."""


def shipped_tiles(device_name: str) -> TileTable:
    """What was measured on devices of this name; nothing for others: their products go to torch's library until tuned."""
    file = _SHIPPED / f"{file_name(device_name)}.json"
    return read_tiles(file, device_name) if file.is_file() else NO_TILES


def read_tiles(file: Path, device_name: str) -> TileTable:
    """A table as `to_json` wrote it for this device. Raises ValueError that names the file for anything else."""
    try:
        content = json.loads(file.read_text())
        measured_on = content["device"]
        cuts = {_product(entry["product"]): _read_tile(entry["tile"]) for entry in content["products"]}
    except (KeyError, TypeError, ValueError, OSError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        remedy = "name another one, or write it with `paceline bench tune`"
        raise ValueError(f"{file} is no table of tiles ({reason}): {remedy}") from None
    if measured_on != device_name:
        problem = f"{file} was measured on another device ({measured_on}) than this one ({device_name})"
        raise ValueError(f"{problem}: measure here with `paceline bench tune`")
    return TileTable(cuts)


def to_json(table: TileTable, device_name: str) -> str:
    """The text of a table, an entry a line."""
    lines = [
        json.dumps({"product": asdict(product), "tile": asdict(tile) if tile else None})
        for product, tile in sorted(table.cuts.items(), key=lambda item: (item[0].kind, item[0].outputs, item[0].rows))
    ]
    return f'{{"device": {json.dumps(device_name)}, "products": [\n' + ",\n".join(lines) + "\n]}\n"


def file_name(device_name: str) -> str:
    """A device's name as part of a file's."""
    return "".join(letter if letter.isalnum() else "-" for letter in device_name.lower())


def _distance(one: Product, other: Product) -> float:
    sides = ((one.outputs, other.outputs), (one.columns, other.columns))
    return sum(max(pair) / min(pair) for pair in sides)


def _matrix(product: Product) -> tuple[int, int, Kind]:
    return product.outputs, product.columns, product.kind


def _product(fields: dict[str, Any]) -> Product:
    product = Product(**fields)
    if product.rows not in ROW_BUCKETS or product.kind not in get_args(Kind):
        raise ValueError(f"{product.rows} rows, kind {product.kind!r}: not among {ROW_BUCKETS} and {get_args(Kind)}")
    _refuse_no_counts(fields, ("outputs", "columns"))
    return product


def _read_tile(fields: dict[str, Any] | None) -> Tile | None:
    if fields is None:
        return None
    tile = Tile(**fields)
    _refuse_no_counts(fields, ("rows", "columns", "splits", "warps", "stages"))
    for name in ("rows", "columns", "warps"):
        if (value := fields[name]) & (value - 1):
            raise ValueError(f"{name} must be a power of two, got {value}")
    if min(tile.rows, tile.columns) < _LEAST_SIDE or not isinstance(tile.weights_left, bool):
        raise ValueError(f"{tile}: sides are at least {_LEAST_SIDE}, and weights_left is true or false")
    return tile


def _refuse_no_counts(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if type(fields[name]) is not int or fields[name] < 1:
            raise ValueError(f"{name} must be a whole number from 1 on, got {fields[name]!r}")
