"""`paceline check`: say whether a draft fits a target, from headers, without torch.

Exit codes: 0 fits, 1 does not fit, 2 cannot be read.
"""

from __future__ import annotations

import argparse

from paceline_compat.commands.pair_arguments import (
    LOCATION_HELP,
    add_pair_arguments,
    exit_code,
    inspect_arguments,
    print_answer,
)
from paceline_compat.rules.pair import CACHE_TYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `paceline check`."""
    parser.add_argument("--target", required=True, metavar="PATH", help=LOCATION_HELP)
    add_pair_arguments(parser)
    parser.add_argument("--cache-type", choices=CACHE_TYPES, default="prefix", help="prefix (default) or naive")


def run(args: argparse.Namespace) -> int:
    """Check the pair, print the verdict; the exit code."""
    verdict = inspect_arguments(args, args.cache_type).verdict
    print_answer(verdict, args.json)
    return exit_code(verdict)
