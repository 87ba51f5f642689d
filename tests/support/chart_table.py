"""The table of values in the chart's README, made of the comments in values.yaml.

`PYTHONPATH=tests/support python -c 'import chart_table as t; t.write()'` brings it up to date.
"""

import json
import re
from typing import Any

import yaml
from source_tree import ROOT

CHART = ROOT / "charts" / "paceline"
README = CHART / "README.md"
HEAD = "| Value | Default | What it does |\n|---|---|---|\n"


def table() -> str:
    """One row per commented value, in the file's order."""
    text = (CHART / "values.yaml").read_text()
    values, path, rows, comment = yaml.safe_load(text), [], [], ""
    for line in text.splitlines():
        if match := re.match(r"\s*# -- (.*)", line):
            comment = match[1]
        elif match := re.match(r"(\s*)(\w+):", line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if comment:
                rows.append(f"| `{'.'.join(path)}` | {_default(values, path)} | {comment} |\n")
                comment = ""
    return HEAD + "".join(rows)


def _default(values: dict[str, Any], path: list[str]) -> str:
    for name in path:
        values = values[name]
    return "see values.yaml" if isinstance(values, dict) and values else f"`{json.dumps(values)}`"


def write() -> None:
    """Replace the table in the README."""
    before = README.read_text().partition("| Value |")[0]
    README.write_text(before + table())
