"""Kubernetes quantities (`500m`, `2Gi`) as numbers. The API server rewrites quantities, and a rewrite is no edit."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_DECIMAL = {"m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(text: str) -> Decimal | None:
    """The number that a quantity stands for; None for other text."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    unit = match["unit"] or ""
    if unit in _BINARY:
        return Decimal(match["number"]) * Decimal(1 << _BINARY[unit])
    return Decimal(match["number"]).scaleb(_DECIMAL.get(unit, 0))


def same_quantity(left: object, right: object) -> bool:
    """Whether two values are one quantity in two writings; False for anything that is not a quantity.

    The API server rounds what containers ask for up to thousandths.
    """
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    thousandths = [number if number is None else math.ceil(number.scaleb(3)) for number in map(parse_quantity, (left, right))]
    return thousandths[0] is not None and thousandths[0] == thousandths[1]
