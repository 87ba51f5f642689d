"""The `paceline` command: finds the subcommand, imports only its module, turns configuration errors into one clear message.

Each command's module has `add_arguments(parser)` and `run(args) -> exit status`. It knows nothing else of them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from paceline_runtime.errors import ConfigError

EXIT_USAGE = 2
MODULES = {
    "serve": "paceline_runtime.server.command",
    "demo": "paceline_runtime.demo",
    "check": "paceline_compat.check_command",
    "plan": "paceline_compat.plan_command",
    "fetch": "paceline_runtime.fetch",
    "bench": "paceline_runtime.bench",
    "draft": "paceline_runtime.speculative.dflash.init",
}
# Commands whose name has a second word.
ACTIONS = {"draft": ("init",)}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = _parser().parse_args(words[:1]).command
    module = importlib.import_module(MODULES[name])
    parser = argparse.ArgumentParser(prog=f"paceline {name}", allow_abbrev=False)
    if name in ACTIONS:
        parser.add_argument("action", choices=ACTIONS[name])
    module.add_arguments(parser)
    try:
        return int(module.run(parser.parse_args(words[1:])))
    except ConfigError as error:
        for problem in error.problems:
            print(f"paceline {name}: {problem}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    """The commands and a line for each."""
    parser = argparse.ArgumentParser(prog="paceline", description="Fast and exact serving of large language models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve a model over the OpenAI API")
    commands.add_parser("demo", help="watch a small model answer on this machine's CPU")
    commands.add_parser("check", help="say whether a draft fits a target, from headers")
    commands.add_parser("plan", help="show the memory that a target and draft take on a device")
    commands.add_parser("fetch", help="put a model's files into a folder")
    commands.add_parser("bench", help="measure this machine: decode steps, a long prompt beside others, a peer")
    commands.add_parser("draft", help="draft init: write a random DFlash 2 draft that fits a target")
    return parser
