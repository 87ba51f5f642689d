"""A plot of a sweep as SVG: milliseconds of a step against the batch, a line for each algorithm, depth and context.

`step` writes what it returns into a file. It knows cells and their times only, and needs no library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from paceline_runtime.bench.sweep import Cell

_WIDTH, _HEIGHT = 900, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 660, 40, 430
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
_DASHES = ("none", "7 4", "2 3", "9 3 2 3")
"""A line's colour tells its context, its dashes who drafts."""

Line = Sequence[tuple[int, float]]
"""Requests and milliseconds, by requests."""


def lines_of(found: Iterable[tuple[Cell, float]]) -> dict[tuple[str, int], Line]:
    """Lines by who drafts and by context, of cells with the seconds of a step."""
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for cell, step_s in found:
        name = f"{cell.algorithm} k={cell.num_drafts}" if cell.num_drafts else cell.algorithm
        lines.setdefault((name, cell.context_tokens), []).append((cell.num_requests, step_s * 1e3))
    return {key: sorted(points) for key, points in lines.items()}


def svg(lines: Mapping[tuple[str, int], Line], title: str) -> str:
    """The drawing. The batch has a logarithmic axis, milliseconds begin at 0."""
    batches = sorted({batch for line in lines.values() for batch, _ in line})
    tick = _tick(max(ms for line in lines.values() for _, ms in line))
    num_ticks = math.ceil(max(ms for line in lines.values() for _, ms in line) / tick)
    span = math.log2(batches[-1] / batches[0]) or 1.0

    def x(batch: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * math.log2(batch / batches[0]) / span

    def y(ms: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * ms / (tick * num_ticks)

    parts = [_text((_LEFT + _RIGHT) / 2, _TOP - 18, title, "middle")]
    for number in range(num_ticks + 1):
        parts.append(_rule(_LEFT, y(number * tick), _RIGHT, y(number * tick)))
        parts.append(_text(_LEFT - 8, y(number * tick) + 4, f"{number * tick:g}", "end"))
    for batch in batches:
        parts.append(_rule(x(batch), _TOP, x(batch), _BOTTOM))
        parts.append(_text(x(batch), _BOTTOM + 18, str(batch), "middle"))
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, "requests decoded together", "middle"))
    parts.append(_text(_LEFT - 8, _TOP - 18, "ms a step", "end"))
    names, contexts = (sorted({key[place] for key in lines}) for place in (0, 1))
    for index, ((name, context), line) in enumerate(lines.items()):
        look = (_COLOURS[contexts.index(context) % len(_COLOURS)], _DASHES[names.index(name) % len(_DASHES)])
        parts.append(_line([(x(batch), y(ms)) for batch, ms in line], *look))
        at = _TOP + 12 + 18 * index
        parts.append(_line([(_RIGHT + 20, at - 4), (_RIGHT + 52, at - 4)], *look))
        parts.append(_text(_RIGHT + 60, at, f"{name}, {context:,} tokens", "start"))
    height = max(_HEIGHT, _TOP + 24 + 18 * len(lines))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>"]) + "\n"


def _tick(most: float) -> float:
    """1, 2 or 5 times a power of ten: at most eight of them reach `most`."""
    power = 10.0 ** math.floor(math.log10(most / 8))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * 8 >= most)


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dash}"/>{dots}'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
