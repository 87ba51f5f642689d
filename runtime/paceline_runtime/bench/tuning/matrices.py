"""The matrices whose products a decode step asks a table of cuts for, as it asks.

`tune` calls it. A table that answers nothing and remembers every question goes into the target and the drafts of a shape, and
what a few real steps ask is what there is to measure: no list of them could be wrong or incomplete.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_kernels.skinny_linear import Kind, Product, Tile, TileTable
from paceline_runtime.bench.drive import Sizes, drain, make_engine, released, start_decoding
from paceline_runtime.bench.subjects import Subject, subject
from paceline_runtime.layers.parameters import all_dense

_PROMPT_TOKENS = 100
"""More rows than any cut is for, so that what prefills alone ask is left out."""
_STEPS = 3
_MAX_MODEL_LEN = 256


@dataclass(frozen=True)
class Matrix:
    """A weight [outputs, columns], and what becomes of its product."""

    kind: Kind
    outputs: int
    columns: int

    def __str__(self) -> str:
        return f"{self.kind} {self.outputs}x{self.columns}"


@dataclass(frozen=True)
class Questions(TileTable):
    """A table without cuts that remembers what it was asked, in order."""

    asked: dict[Matrix, None] = field(default_factory=dict)

    def tile(self, product: Product) -> Tile | None:
        """None: torch's library."""
        if product.bucket is not None:
            self.asked.setdefault(Matrix(product.kind, product.outputs, product.columns))
        return None


def matrices_of(args: argparse.Namespace) -> list[Matrix]:
    """What decode steps of the asked shape multiply by, for each of `args.algorithms`; weights are random."""
    args.dummy_weights = True  # a folder's own weights would take time, and no product depends on them
    questions = Questions({})
    with subject(args, _MAX_MODEL_LEN, all_dense(questions)) as one:
        for algorithm in args.algorithms:
            _decode(one, algorithm)
    return list(questions.asked)


def _decode(one: Subject, algorithm: str) -> None:
    engine = make_engine(one, one.proposer(algorithm, None, _MAX_MODEL_LEN), Sizes(1, _MAX_MODEL_LEN, _MAX_MODEL_LEN))
    with released(engine):
        names: Sequence[str] = start_decoding(engine, 1, _PROMPT_TOKENS)
        for _ in range(_STEPS):
            engine.step()
        drain(engine, list(names))
