"""The `paceline` command: it finds the subcommand, imports that module only, and turns a user's errors into one clear message.

Each command's module has `add_arguments(parser)` and `run(args) -> exit status`. This module knows nothing else of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from paceline_compat.commands.parser import EXIT_USAGE, Parser
from paceline_runtime.errors import ConfigError

EXIT_INTERRUPTED = 130
MODULES = {
    "serve": "paceline_runtime.server.command",
    "demo": "paceline_runtime.demo",
    "check": "paceline_compat.commands.check",
    "plan": "paceline_compat.commands.plan",
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
    try:
        status = _run(name, words[1:])
        print(end="", flush=True)
        return status
    except ConfigError as error:
        return _refuse(name, error.problems)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("paceline"):
            raise
        return _refuse(
            name, [f"{error.name} is not installed: pip install 'paceline[runtime]', 'paceline[runtime,gpu]' on a GPU"]
        )
    except OSError as error:
        _settle_output()
        return _refuse(name, ["nobody reads the output" if isinstance(error, BrokenPipeError) else str(error)])


def _run(name: str, words: Sequence[str]) -> int:
    """The exit status of a command with these flags."""
    module = importlib.import_module(MODULES[name])
    parser = Parser(prog=f"paceline {name}")
    if name in ACTIONS:
        parser.add_argument("action", choices=ACTIONS[name])
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(words)))


def _refuse(name: str, problems: Sequence[str]) -> int:
    """Print a line for each problem; the exit status, another one than `check` and `plan` have for what does not fit."""
    for problem in problems:
        print(f"paceline {name}: {problem}", file=sys.stderr)
    return EXIT_USAGE


def _settle_output() -> None:
    """Write what is left of the output or drop it: Python would try that at its end, and fail with a status of its own."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parser() -> Parser:
    """The commands and a line for each."""
    parser = Parser(prog="paceline", description="Fast and exact serving of large language models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve a model over the OpenAI API")
    commands.add_parser("demo", help="watch a small model answer on this machine's CPU")
    commands.add_parser("check", help="say whether a draft fits a target, from headers")
    commands.add_parser("plan", help="show the memory that a target and draft take on a device")
    commands.add_parser("fetch", help="put a model's files into a folder")
    commands.add_parser("bench", help="measure this machine: decode steps, a long prompt beside others, a peer")
    commands.add_parser("draft", help="draft init: write a random DFlash 2 draft that fits a target")
    return parser
