"""``paceline check`` and ``paceline plan``: does a pair fit, and what memory does it take. Headers only, no torch.

Exit codes of both: 0 fits, 1 does not fit, 2 cannot be read. ``paceline_runtime.cli`` adds them to its subcommands;
``python -m paceline_compat`` runs them without the runtime installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, Protocol

from .budget import Budget
from .errors import MetadataError
from .inspection import Inspection, inspect_pair
from .location import ENDPOINT_VARIABLE, Location, open_location
from .machines import DEVICE_BYTES, budget_bytes
from .memory import DTYPE_BYTES
from .pair import ALGORITHMS, CACHE_TYPES, Options
from .planner import PlanOptions, plan
from .verdict import METADATA_UNAVAILABLE, Problem, Verdict

FITS, DOES_NOT_FIT, UNREADABLE = 0, 1, 2
_GRAPH_POOL = "512MiB"


class _Answer(Protocol):
    def to_dict(self) -> dict[str, Any]: ...

    def to_text(self) -> str: ...


def add_subcommands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``check`` and ``plan``; the parsed arguments carry ``run``, a function of them that returns the exit code."""
    _add(subparsers, "check", "say whether a draft fits a target, from headers", add_check_arguments, run_check)
    _add(subparsers, "plan", "show the memory a target and draft take on a device", add_plan_arguments, run_plan)


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``paceline check``."""
    parser.add_argument("--target", required=True, metavar="PATH", help=_LOCATION)
    _add_pair_arguments(parser)
    parser.add_argument("--cache-type", choices=CACHE_TYPES, default="prefix", help="prefix (default) or naive")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``paceline plan``."""
    parser.add_argument("--model", dest="target", required=True, metavar="PATH", help=_LOCATION)
    _add_pair_arguments(parser)
    sizes = f"a size (80GiB), or a device: {', '.join(DEVICE_BYTES)}"
    parser.add_argument("--memory", required=True, metavar="SIZE", help=sizes)
    parser.add_argument("--memory-ratio", type=_ratio, default=0.9, help="share of a named device's memory to plan with")
    parser.add_argument("--dtype", choices=tuple(DTYPE_BYTES), default="bfloat16", help="dtype of weights and K/V")
    parser.add_argument("--max-running-requests", type=_positive, default=4, metavar="N")
    parser.add_argument("--max-prefill-tokens", type=_positive, default=2048, metavar="N")
    parser.add_argument("--num-pages", type=_positive, metavar="N", help="K/V pages of 64 tokens; default: what is left")
    parser.add_argument("--graph-pool", default=_GRAPH_POOL, metavar="SIZE", help="allowance for CUDA graphs")


def run_check(args: argparse.Namespace) -> int:
    """Check the pair, print the verdict."""
    verdict = _inspect(args).verdict
    _print(verdict, args.json)
    return _exit_code(verdict)


def run_plan(args: argparse.Namespace) -> int:
    """Check the pair, then plan its memory and print the table. A pair that does not fit is not planned."""
    try:
        budget, graph_pool = budget_bytes(args.memory, args.memory_ratio), budget_bytes(args.graph_pool, 1.0)
    except ValueError as error:
        print(error)
        return UNREADABLE
    inspection = _inspect(args)
    if inspection.target is None or not inspection.verdict.fits:
        _print(inspection.verdict, args.json)
        return _exit_code(inspection.verdict)
    made = plan(budget, inspection.target, inspection.draft, _plan_options(args, graph_pool))
    _print(made, args.json)
    return FITS if made.fits else DOES_NOT_FIT


_LOCATION = "checkpoint folder, .gguf file, hf://org/name[@revision] or https:// address"


def _add(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
) -> None:
    parser = subparsers.add_parser(name, help=text, description=text)
    add_arguments(parser)
    parser.set_defaults(run=run)


def _add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", "--speculative-draft-model-path", metavar="PATH", help="the DFlash 2 draft")
    which = "default: dflash with a draft, off without"
    parser.add_argument("--speculative-algorithm", choices=ALGORITHMS, help=which)
    parser.add_argument("--speculative-num-steps", type=int, metavar="K", help="tokens drafted per step")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="longest context; default: the target's")
    parser.add_argument("--hub-endpoint", metavar="URL", help=f"address behind hf://; default: {ENDPOINT_VARIABLE}")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="time for remote reads together")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _inspect(args: argparse.Namespace) -> Inspection:
    """Read both checkpoints under one budget. The token comes from HF_TOKEN, never from a flag others can see."""
    budget = Budget(timeout_s=args.timeout_s)
    locations: dict[str, Location | None] = {}
    problems = []
    for role, text in (("target", args.target), ("draft", args.draft)):
        try:
            locations[role] = open_location(text, endpoint=args.hub_endpoint, budget=budget) if text else None
        except MetadataError as error:
            problems.append(Problem(f"{role}.metadata", METADATA_UNAVAILABLE, role, str(error), ""))
    target = locations.get("target")
    if problems or target is None:
        return Inspection(None, None, Verdict(args.target, args.draft, tuple(problems)))
    return inspect_pair(target, locations["draft"], _options(args))


def _options(args: argparse.Namespace) -> Options:
    return Options(
        algorithm=_algorithm(args),
        num_steps=args.speculative_num_steps,
        max_model_len=args.max_model_len,
        cache_type=getattr(args, "cache_type", "prefix"),
    )


def _plan_options(args: argparse.Namespace, graph_pool_bytes: int) -> PlanOptions:
    return PlanOptions(
        algorithm=_algorithm(args),
        num_steps=args.speculative_num_steps,
        dtype=args.dtype,
        max_running=args.max_running_requests,
        max_model_len=args.max_model_len,
        max_prefill_tokens=args.max_prefill_tokens,
        num_pages=args.num_pages,
        graph_pool_bytes=graph_pool_bytes,
    )


def _algorithm(args: argparse.Namespace) -> str:
    given: str | None = args.speculative_algorithm
    return given or ("dflash" if args.draft else "off")


def _exit_code(verdict: Verdict) -> int:
    if not verdict.is_readable:
        return UNREADABLE
    return FITS if verdict.fits else DOES_NOT_FIT


def _print(answer: _Answer, as_json: bool) -> None:
    print(json.dumps(answer.to_dict(), indent=2) if as_json else answer.to_text())


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value
