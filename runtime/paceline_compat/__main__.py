"""`python -m paceline_compat check ...` and `plan ...`: the commands where the runtime is not installed."""

from __future__ import annotations

import sys

from paceline_compat.commands import check as check_command
from paceline_compat.commands import plan as plan_command
from paceline_compat.commands.parser import Parser


def main(arguments: list[str]) -> int:
    """Parse and run; the exit code."""
    parser = Parser(prog="paceline", description="Does a draft fit a target, and the pair a GPU?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="say whether a draft fits a target, from headers")
    check_command.add_arguments(check)
    check.set_defaults(run=check_command.run)
    plan = commands.add_parser("plan", help="show the memory a target and draft take on a device")
    plan_command.add_arguments(plan)
    plan.set_defaults(run=plan_command.run)
    args = parser.parse_args(arguments)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
