"""What `paceline check` and `paceline plan` share: arguments, reading the pair, printing, exit codes."""

from __future__ import annotations

import argparse
import json
from typing import Any, Protocol

from paceline_compat.errors import MetadataError
from paceline_compat.places.budget import Budget
from paceline_compat.places.location import ENDPOINT_VARIABLE, Location, open_location
from paceline_compat.places.uri import HUB_FORM
from paceline_compat.rules.inspection import Inspection, inspect_pair, metadata_problem
from paceline_compat.rules.pair import ALGORITHMS, Options
from paceline_compat.rules.verdict import Verdict

FITS, DOES_NOT_FIT, UNREADABLE = 0, 1, 2


class Answer(Protocol):
    """A verdict or a plan."""

    def to_dict(self) -> dict[str, Any]: ...

    def to_text(self) -> str: ...


LOCATION_HELP = f"checkpoint folder, .gguf file (or a folder with one), {HUB_FORM} or https:// address"


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments about the draft and how the draft is to run; the target has a name of its own in each command."""
    parser.add_argument("--draft", "--speculative-draft-model-path", metavar="PATH", help="the DFlash 2 draft")
    which = "default: dflash with a draft, off without"
    parser.add_argument("--speculative-algorithm", choices=ALGORITHMS, help=which)
    parser.add_argument("--speculative-num-steps", type=int, metavar="K", help="tokens drafted per step")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="longest context; default: the target's")
    parser.add_argument("--hub-endpoint", metavar="URL", help=f"address behind hf://; default: {ENDPOINT_VARIABLE}")
    parser.add_argument("--timeout-s", type=_seconds, default=60.0, metavar="S", help="time for remote reads together")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def inspect_arguments(args: argparse.Namespace, cache_type: str = "prefix") -> Inspection:
    """Read both checkpoints under one budget. The token comes from HF_TOKEN, never from a flag others can see."""
    options = Options(
        algorithm=algorithm(args),
        num_drafts=args.speculative_num_steps,
        max_model_len=args.max_model_len,
        cache_type=cache_type,
    )
    budget = Budget(timeout_s=args.timeout_s)
    locations: dict[str, Location | None] = {"draft": None}
    problems = []
    for role, text in (("target", args.target), ("draft", args.draft)):
        try:
            if text is not None:
                locations[role] = open_location(text, endpoint=args.hub_endpoint, budget=budget)
        except MetadataError as error:
            problems.append(metadata_problem(role, error))
    target = locations.get("target")
    if problems or target is None:
        return Inspection(None, None, Verdict(args.target, args.draft, tuple(problems)))
    return inspect_pair(target, locations["draft"], options)


def algorithm(args: argparse.Namespace) -> str:
    """The algorithm given; else dflash with a draft, off without."""
    given: str | None = args.speculative_algorithm
    return given or ("off" if args.draft is None else "dflash")


def exit_code(verdict: Verdict) -> int:
    """0 fits, 1 does not, 2 cannot be read."""
    if not verdict.is_readable:
        return UNREADABLE
    return FITS if verdict.fits else DOES_NOT_FIT


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print JSON or text."""
    print(json.dumps(answer.to_dict(), indent=2) if as_json else answer.to_text())
