"""Typed reading of a config's JSON: every wrong field is collected, and all are reported together. `facts` reads with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from paceline_compat.errors import MetadataError
from paceline_compat.places.source import Source, read_all

MAX_CONFIG_BYTES = 4 << 20
MAX_LAYERS = 1 << 12
MAX_INTEGER = 1 << 40


def read_json(source: Source) -> dict[str, Any]:
    """A small JSON object; duplicate keys, which other readers resolve each in their own way, are refused."""
    try:
        data = json.loads(read_all(source, MAX_CONFIG_BYTES), object_pairs_hook=_unique_pairs)
    except (ValueError, RecursionError) as error:
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(source.name, f"is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise MetadataError(source.name, "is not a JSON object")
    return data


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return out


class Fields:
    """Typed views of one mapping. A wrong value is noted and a harmless one returned, until `finish` raises."""

    def __init__(self, source: str, data: Mapping[str, Any]) -> None:
        self.source, self.data = source, data
        self.problems: list[str] = []

    def finish(self) -> None:
        """Raise one MetadataError that names every field noted."""
        if self.problems:
            raise MetadataError(self.source, "; ".join(self.problems))

    def size(self, key: str, default: int | None = None, maximum: int = MAX_INTEGER) -> int:
        """A positive integer; absent is a problem unless there is a default."""
        value = self.optional_integer(key)
        if value is None:
            if default is None:
                self.problems.append(f"{key} is missing")
            return default or 0
        if not 1 <= value <= maximum:
            self.problems.append(f"{key} is {value}, not between 1 and {maximum}")
            return 0
        return value

    def optional_integer(self, key: str) -> int | None:
        value = self.data.get(key)
        if value is None or (type(value) is int and abs(value) < MAX_INTEGER):
            return value
        self._wrong(key, value, "an integer")
        return None

    def optional_number(self, key: str) -> float | None:
        value = self.data.get(key)
        if value is None:
            return None
        if type(value) in (int, float) and abs(value) < MAX_INTEGER and math.isfinite(value):
            return float(value)
        self._wrong(key, value, "a finite number")
        return None

    def number(self, key: str, default: float) -> float:
        """A positive finite number."""
        value = self.optional_number(key)
        if value is not None and value <= 0:
            self._wrong(key, value, "positive")
        return default if value is None else value

    def optional_flag(self, key: str) -> bool | None:
        value = self.data.get(key)
        if value is None or type(value) is bool:
            return value
        self._wrong(key, value, "true or false")
        return None

    def text(self, key: str, default: str) -> str:
        value = self.data.get(key)
        if value is None or isinstance(value, str):
            return default if value is None else value
        self._wrong(key, value, "a string")
        return default

    def mapping(self, key: str) -> dict[str, Any] | None:
        value = self.data.get(key)
        if value is None or isinstance(value, dict):
            return value
        self._wrong(key, value, "an object")
        return None

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers, or one integer for a list of one."""
        value = self.data.get(key)
        items = [value] if type(value) is int else value
        if value is None:
            return None
        if isinstance(items, list) and all(type(i) is int and abs(i) < MAX_INTEGER for i in items):
            return tuple(items)
        self._wrong(key, value, "a list of integers")
        return None

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self._wrong(key, value, "a list of strings")
        return None

    def _wrong(self, key: str, value: object, wanted: str) -> None:
        self.problems.append(f"{key} is {repr(value)[:60]}, not {wanted}")
