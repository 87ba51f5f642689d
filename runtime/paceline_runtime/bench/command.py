"""The measurements of `paceline bench` and their flags; each measurement's module is imported when it is asked for.

The `paceline` command calls it. Reading flags needs no torch.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.bench.files import refuse_unwritable
from paceline_runtime.bench.shapes import SHAPES
from paceline_runtime.config import DType
from paceline_runtime.errors import ConfigError

MEASUREMENTS = {
    "step": "time of decode steps and of a prefill at a model's real shape, random weights, beside the device's limit",
    "share": "inter-token time of decoding requests alone and while a long prompt prefills",
    "tune": "how products of few rows are best cut on this GPU, as a table for --tiles",
    "peer": "decode and prefill against transformers' generate, and the server's memory, for a GGUF model",
}
_FILES = ("json", "plot", "out")
"""Flags that name a file to write."""
_ROWS = (1, 8, 16, 32, 64)
"""The numbers of rows that a table holds, written out since the kernels' own list comes with torch."""
_ALGORITHMS = ("off", "ngram", "mtp", "dflash")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the measurements and their flags."""
    commands = parser.add_subparsers(dest="measurement", required=True, metavar="MEASUREMENT")
    added = {name: commands.add_parser(name, help=text, description=text) for name, text in MEASUREMENTS.items()}
    _add_shape(added["step"])
    _add_step(added["step"])
    _add_shape(added["share"])
    _add_tiles(added["step"])
    _add_tiles(added["share"])
    _add_share(added["share"])
    _add_shape(added["tune"])
    _add_tune(added["tune"])
    _add_peer(added["peer"])
    for one in added.values():
        one.add_argument("--json", metavar="FILE", help="also write the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Run one measurement; the exit status."""
    for flag in _FILES:
        if (file := getattr(args, flag, None)) is not None:
            refuse_unwritable(f"--{flag}", Path(file))
    module = importlib.import_module(f"paceline_runtime.bench.{args.measurement}")
    try:
        return int(module.run(args))
    except ValueError as error:  # as the engine process takes what loaders and the engine refuse
        raise ConfigError(str(error).splitlines()) from error


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", required=True, metavar="NAME", help=f"{', '.join(SHAPES)}, or a folder with a config.json")
    parser.add_argument("--dummy-weights", action="store_true", help="random weights: said for clarity, there are no others")
    parser.add_argument("--layers", type=_at_least(1), metavar="N", help="keep only the first N layers of the target")
    parser.add_argument("--dtype", default="auto", choices=get_args(DType), help="auto: bfloat16 on a GPU, else float32")
    parser.add_argument("--device", default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--threads", type=_at_least(1), metavar="N", help="CPU threads (default: torch's)")


def _add_tiles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tiles", metavar="FILE", help="cuts of products, from `bench tune` (default: as shipped)")


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algorithms", default="off", type=_names, metavar="A,B", help=f"of {', '.join(_ALGORITHMS)}")
    drafts = "drafts per step (default: 7 for dflash, else 3)"
    parser.add_argument("--num-steps", type=_numbers, metavar="K,L", help=drafts)
    parser.add_argument("--requests", default="1,4", type=_numbers, metavar="N,M", help="batch sizes (default: 1,4)")
    contexts = "prompt of each request; every batch size is measured with every one (default: 1024)"
    parser.add_argument("--context-tokens", default="1024", type=_numbers, metavar="N,M", help=contexts)
    parser.add_argument("--steps", type=_at_least(1), default=32, metavar="N", help="decode steps to measure (default: 32)")
    parser.add_argument(
        "--prefill-tokens", type=_at_least(0), metavar="N", help="prompt of the prefill, 0: none (default: 8192)"
    )
    parser.add_argument("--pretend-contexts", action="store_true", help="compute no prompt: a sweep in seconds a row")
    parser.add_argument(
        "--prefill-chunk", type=_at_least(PAGE_TOKENS), default=2048, metavar="N", help="prompt tokens a step (default: 2048)"
    )
    parser.add_argument("--tokens-per-step", type=float, metavar="X", help="synthetic acceptance (default: as published)")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw step ms against the batch")
    parser.add_argument(
        "--profile", action="store_true", help="list a step's kernels with bytes and share of the limit; GPU only"
    )


def _add_share(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", default=4, type=_at_least(1), metavar="N", help="decoding requests (default: 4)")
    parser.add_argument("--context-tokens", type=_at_least(1), default=256, metavar="N", help="prompt of each (default: 256)")
    parser.add_argument(
        "--prompt-tokens", type=_at_least(1), default=16384, metavar="N", help="the long prompt (default: 16384)"
    )
    parser.add_argument("--steps", type=_at_least(2), default=64, metavar="N", help="decode steps measured alone (default: 64)")


def _add_tune(parser: argparse.ArgumentParser) -> None:
    whose = f"whose products are measured, of {', '.join(_ALGORITHMS)} (default: off)"
    parser.add_argument("--algorithms", default="off", type=_names, metavar="A,B", help=whose)
    rows = "numbers of rows to measure; others get the cut of the next larger one (default: 1,8,32,64)"
    parser.add_argument("--rows", default="1,8,32,64", type=_row_buckets, metavar="N,M", help=rows)
    parser.add_argument("--out", metavar="FILE", help="the table (default: named after the device, in this folder)")


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="PATH", help="a .gguf file of the llama family")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of both (default: float32)")
    parser.add_argument("--threads", type=_at_least(1), default=1, metavar="N", help="CPU threads of both (default: 1)")
    parser.add_argument("--pairs", type=_at_least(1), default=7, metavar="N", help="interleaved pairs (default: 7)")
    parser.add_argument("--prompt-tokens", type=_at_least(1), default=256, metavar="N", help="default: 256")
    parser.add_argument("--new-tokens", type=_at_least(2), default=64, metavar="N", help="default: 64")
    parser.add_argument("--skip-memory", action="store_true", help="do not start a server to measure its memory")


def _at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: a number that is not less."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return number


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(_ALGORITHMS)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(_ALGORITHMS)}")
    return names


def _row_buckets(text: str) -> tuple[int, ...]:
    """Some of those that a table is asked for."""
    if unknown := set(numbers := _numbers(text)) - set(_ROWS):
        raise argparse.ArgumentTypeError(f"{', '.join(map(str, sorted(unknown)))}: not of {', '.join(map(str, _ROWS))}")
    return tuple(sorted(set(numbers)))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers as 1,4") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, every one of {text}")
    return numbers
