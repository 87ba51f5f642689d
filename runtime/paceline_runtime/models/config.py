"""Reading a checkpoint's config with every problem reported at once. Used by the families; it knows no file format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from paceline_compat.families import FAMILY_NEUTRAL_FIELDS, NEUTRAL_FIELDS

T = TypeVar("T")

NORM_EPS = 1e-6
"""What transformers takes where a config states none, for every family here."""


class ConfigError(ValueError):
    """A config this runtime cannot serve; `problems` names each field, its value and what would do."""

    def __init__(self, family: str, problems: list[str]) -> None:
        super().__init__(f"config of family {family}: " + "; ".join(problems))
        self.family, self.problems = family, problems


class ConfigReader:
    """Takes typed fields out of a config and collects what is wrong; `finish` raises it all."""

    def __init__(self, family: str, config: Mapping[str, Any]) -> None:
        self.family, self.config = family, config
        self.problems: list[str] = []

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer; 1 stands in for a wrong one until `finish`."""
        value = self.config.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            self.problems.append(f"{name} must be a positive integer, got {value!r}")
            return 1
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.problems.append(f"{name} must be a positive number, got {value!r}")
            return 1.0
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.config.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.problems.append(f"{name} must be true or false, got {value!r}")
        return bool(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id, a list of them, or none."""
        value = self.config.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(token) is int for token in ids):
            self.problems.append(f"{name} must be a token id or a list of them, got {value!r}")
            return ()
        return tuple(ids)

    def refuse_unless_neutral(self) -> None:
        """Refuse fields that would change the computation and are not implemented: the rules' own, and packed weights."""
        matters = NEUTRAL_FIELDS | FAMILY_NEUTRAL_FIELDS[self.family] | {"quantization_config": ()}
        for name, neutral in matters.items():
            value = self.config.get(name)
            if value is not None and value not in neutral:
                allowed = " or ".join(repr(choice) for choice in neutral) or "absent"
                self.problems.append(f"{name} = {value!r} is not supported, it must be {allowed}")

    def finish(self) -> None:
        """Raise ConfigError when anything was wrong."""
        if self.problems:
            raise ConfigError(self.family, self.problems)
