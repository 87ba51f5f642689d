"""How products of few rows are cut on a device: measured figures, shipped for an H200 and written by `paceline bench tune`.

Layers read it when a model is built; the face asks it at every launch. It refuses to know torch: a product is four numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

Kind = Literal["whole", "parts", "gated"]
"""What becomes of a product: rows for the next layer, sums that something adds, or the activation of neighbouring outputs."""
MAX_ROWS = 64
"""Arithmetic bounds a product of more rows, and torch's library is better at that."""
ROW_BUCKETS = (1, 8, 16, 32, 64)
"""Rows are measured at these and served by the next larger one."""
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


NO_TILES = TileTable({})
"""Every product goes to torch's library."""


def shipped_tiles(device_name: str) -> TileTable:
    """What was measured on devices of this name; nothing for others: their products go to torch's library until tuned."""
    file = _SHIPPED / f"{file_name(device_name)}.json"
    return read_tiles(file) if file.is_file() else NO_TILES


def read_tiles(file: Path) -> TileTable:
    """A table as `to_json` wrote it. Raises ValueError that names the file when it is none."""
    try:
        entries = json.loads(file.read_text())["products"]
        cuts = {Product(**entry["product"]): Tile(**entry["tile"]) if entry["tile"] else None for entry in entries}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} is no table of tiles ({error}): delete it, or write it again with `paceline bench tune`"
        ) from None
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
