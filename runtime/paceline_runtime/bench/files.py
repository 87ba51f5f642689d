"""Files that a measurement will write. The bench's command and `tune` ask before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

from paceline_runtime.errors import ConfigError


def refuse_unwritable(flag: str, file: Path) -> None:
    """ConfigError before the minutes of a measurement, not after."""
    is_free = not file.exists() and file.parent.is_dir()
    if file.is_dir() or not os.access(file.parent if is_free else file, os.W_OK):
        raise ConfigError([f"{flag} {file} cannot be written: name a file in a folder that is there"])
