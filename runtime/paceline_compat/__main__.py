"""``python -m paceline_compat check ...`` and ``plan ...``: the commands without the runtime, as the inspect Job runs them."""

from __future__ import annotations

import argparse
import sys

from .command import add_subcommands


def main(arguments: list[str]) -> int:
    """Parse and run; the exit code."""
    parser = argparse.ArgumentParser(prog="paceline", description="Does a draft fit a target, and does the pair fit a GPU?")
    add_subcommands(parser.add_subparsers(required=True, metavar="COMMAND"))
    args = parser.parse_args(arguments)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
