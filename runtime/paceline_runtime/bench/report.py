"""Tables for people and JSON for the performance log. The measurements call it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def device_text(device: torch.device) -> str:
    """The device, its software and, on a CPU, the threads."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, columns aligned so that a terminal reads it too; it goes into docs/perf-log.md as it is."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(head), "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *map(line, rows)])


def write_json(path: str, device: torch.device, figures: dict[str, Any]) -> None:
    """The figures with the device they hold for; seconds and bytes."""
    Path(path).write_text(json.dumps({"device": device_text(device), **figures}, indent=2) + "\n")
