"""`paceline plan`: the memory a target and draft take on a device, from headers, without torch or the device.

Exit codes: 0 fits, 1 does not fit, 2 cannot be read.
"""

from __future__ import annotations

import argparse
import sys

from paceline_compat.commands.pair_arguments import (
    DOES_NOT_FIT,
    FITS,
    LOCATION_HELP,
    UNREADABLE,
    add_pair_arguments,
    algorithm,
    exit_code,
    inspect_arguments,
    print_answer,
)
from paceline_compat.memory.machines import DEVICE_BYTES, budget_bytes, is_device
from paceline_compat.memory.parts import DTYPE_BYTES, PAGE_TOKENS, draft_dtype
from paceline_compat.memory.planner import FEW_STATE_SLOTS, PlanOptions, no_state_slots, plan
from paceline_compat.memory.sizes import parse_size

_GRAPH_POOL = "512MiB"
_MEMORY_RATIO = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `paceline plan`."""
    parser.add_argument("--model", dest="target", required=True, metavar="PATH", help=LOCATION_HELP)
    add_pair_arguments(parser)
    sizes = f"a size (80GiB), or a device: {', '.join(DEVICE_BYTES)}"
    parser.add_argument("--memory", required=True, metavar="SIZE", help=sizes)
    share = f"share of a named device's memory to plan with (default: {_MEMORY_RATIO})"
    parser.add_argument("--memory-ratio", type=_ratio, metavar="SHARE", help=share)
    parser.add_argument("--dtype", choices=tuple(DTYPE_BYTES), default="bfloat16", help="dtype of weights and K/V")
    parser.add_argument("--max-running-requests", type=_positive, default=4, metavar="N")
    parser.add_argument("--max-prefill-tokens", type=_page_or_more, default=2048, metavar="N")
    parser.add_argument("--num-pages", type=_positive, metavar="N", help="K/V pages of 64 tokens; default: what is left")
    parser.add_argument("--num-state-slots", type=_positive, metavar="N", help="recurrent states of hybrid models together")
    parser.add_argument("--graph-pool", default=_GRAPH_POOL, metavar="SIZE", help="allowance for CUDA graphs")


def run(args: argparse.Namespace) -> int:
    """Check the pair, then plan its memory and print the table; the exit code. A pair that does not fit is not planned."""
    problems: list[str] = []
    budget = _bytes(args.memory, "--memory", problems, _MEMORY_RATIO if args.memory_ratio is None else args.memory_ratio)
    graph_pool = _bytes(args.graph_pool, "--graph-pool", problems)
    if args.memory_ratio is not None and not is_device(args.memory):
        problems.append("--memory-ratio is a share of a named device's memory: drop it, or name a device in --memory")
    slots = args.num_state_slots
    if slots is not None and slots < 2 * args.max_running_requests:
        problems.append(FEW_STATE_SLOTS)
    if problems:
        return _refuse(problems)
    inspection = inspect_arguments(args)
    if inspection.target is None or not inspection.verdict.fits:
        print_answer(inspection.verdict, args.json)
        return exit_code(inspection.verdict)
    if slots is not None and not inspection.target.num_linear_layers:
        return _refuse([no_state_slots(inspection.target.family)])
    made = plan(budget, inspection.target, inspection.draft, _plan_options(args, graph_pool))
    print_answer(made, args.json)
    return FITS if made.fits else DOES_NOT_FIT


def _refuse(problems: list[str]) -> int:
    print("\n".join(f"paceline plan: {problem}" for problem in problems), file=sys.stderr)
    return UNREADABLE


def _bytes(text: str, flag: str, problems: list[str], memory_ratio: float | None = None) -> int:
    """A size, or a share of a device's memory where there is a ratio for it; 0 stands in for a wrong one."""
    if memory_ratio is None and is_device(text):
        problems.append(f"{flag}: {text!r} is a device, not a size (512MiB)")
        return 0
    try:
        return parse_size(text) if memory_ratio is None else budget_bytes(text, memory_ratio)
    except ValueError as error:
        problems.append(f"{flag}: {error}")
        return 0


def _plan_options(args: argparse.Namespace, graph_pool_bytes: int) -> PlanOptions:
    return PlanOptions(
        algorithm=algorithm(args),
        num_drafts=args.speculative_num_steps,
        dtype=args.dtype,
        draft_dtype=draft_dtype(args.dtype, on_gpu=is_device(args.memory)),
        max_running=args.max_running_requests,
        max_model_len=args.max_model_len,
        max_prefill_tokens=args.max_prefill_tokens,
        num_pages=args.num_pages,
        num_state_slots=args.num_state_slots,
        graph_pool_bytes=graph_pool_bytes,
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def _page_or_more(text: str) -> int:
    if (value := int(text)) < PAGE_TOKENS:
        raise argparse.ArgumentTypeError(f"{value} is less than a page of {PAGE_TOKENS} tokens")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value
