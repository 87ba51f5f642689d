"""``paceline plan``: the memory a target and draft take on a device, from headers, without torch or the device.

Exit codes: 0 fits, 1 does not fit, 2 cannot be read.
"""

from __future__ import annotations

import argparse

from .machines import DEVICE_BYTES, budget_bytes
from .memory import DTYPE_BYTES
from .pair_arguments import (
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
from .planner import PlanOptions, plan

_GRAPH_POOL = "512MiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``paceline plan``."""
    parser.add_argument("--model", dest="target", required=True, metavar="PATH", help=LOCATION_HELP)
    add_pair_arguments(parser)
    sizes = f"a size (80GiB), or a device: {', '.join(DEVICE_BYTES)}"
    parser.add_argument("--memory", required=True, metavar="SIZE", help=sizes)
    parser.add_argument("--memory-ratio", type=_ratio, default=0.9, help="share of a named device's memory to plan with")
    parser.add_argument("--dtype", choices=tuple(DTYPE_BYTES), default="bfloat16", help="dtype of weights and K/V")
    parser.add_argument("--max-running-requests", type=_positive, default=4, metavar="N")
    parser.add_argument("--max-prefill-tokens", type=_positive, default=2048, metavar="N")
    parser.add_argument("--num-pages", type=_positive, metavar="N", help="K/V pages of 64 tokens; default: what is left")
    parser.add_argument("--graph-pool", default=_GRAPH_POOL, metavar="SIZE", help="allowance for CUDA graphs")


def run(args: argparse.Namespace) -> int:
    """Check the pair, then plan its memory and print the table; the exit code. A pair that does not fit is not planned."""
    try:
        budget, graph_pool = budget_bytes(args.memory, args.memory_ratio), budget_bytes(args.graph_pool, 1.0)
    except ValueError as error:
        print(error)
        return UNREADABLE
    inspection = inspect_arguments(args)
    if inspection.target is None or not inspection.verdict.fits:
        print_answer(inspection.verdict, args.json)
        return exit_code(inspection.verdict)
    made = plan(budget, inspection.target, inspection.draft, _plan_options(args, graph_pool))
    print_answer(made, args.json)
    return FITS if made.fits else DOES_NOT_FIT


def _plan_options(args: argparse.Namespace, graph_pool_bytes: int) -> PlanOptions:
    return PlanOptions(
        algorithm=algorithm(args),
        num_steps=args.speculative_num_steps,
        dtype=args.dtype,
        max_running=args.max_running_requests,
        max_model_len=args.max_model_len,
        max_prefill_tokens=args.max_prefill_tokens,
        num_pages=args.num_pages,
        graph_pool_bytes=graph_pool_bytes,
    )


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
