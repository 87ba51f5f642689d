"""Sizes in bytes as people write them, for every flag that takes one. Units as in Kubernetes: G is decimal, Gi is binary."""

from __future__ import annotations

import re
from fractions import Fraction

_FACTORS = {"": 1} | {f"{unit}{i}": (1024 if i else 1000) ** (1 + "KMGT".index(unit)) for unit in "KMGT" for i in ("", "I")}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]I?)?B?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """`16GiB`, `16Gi`, `16G` or plain bytes. ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or a number with a unit (16GiB, 500MB)")
    return int(Fraction(match[1]) * _FACTORS[(match[2] or "").upper()])
