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
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = _parser().parse_args(words[:1]).command
    module = importlib.import_module(MODULES[name])
    parser = argparse.ArgumentParser(prog=f"paceline {name}", description=module.__doc__)
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
    return parser
