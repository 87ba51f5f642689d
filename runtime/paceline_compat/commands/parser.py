"""The command line's parser: whoever mistypes reads one line, with the wrong word and, where it can be guessed, the right one.

`paceline` and `python -m paceline_compat` parse with it. It knows no command.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

EXIT_USAGE = 2
_FLAG = re.compile(r"--?[A-Za-z][^ ]*$")  # as argparse sees it: no number below zero, no text
_PLAIN = {"invalid int value:": "must be a whole number, not", "invalid float value:": "must be a number, not"}


class Parser(argparse.ArgumentParser):
    """As argparse's, without its page of usage before an error, and with flags that are never abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Flags that there are not come first: a typo would be told as the lack of what it was meant for."""
        words = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown(words[: words.index("--")] if "--" in words else words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong in a line, and where to read more."""
        for theirs, ours in _PLAIN.items():
            message = message.replace(theirs, ours)
        print(f"{self.prog}: {message} ('{self.prog} --help' lists all there is)", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        if any(action.nargs == argparse.PARSER for action in self._actions):
            return  # the flags are those of a command, whose parser looks at them
        known = self._option_string_actions
        unknown = [name for word in words if _FLAG.match(word) and (name := word.partition("=")[0]) not in known]
        if unknown:
            self.error("; ".join(f"there is no {name}{did_you_mean(name, known)}" for name in unknown))


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The nearest of some words, as a question; empty where none is near."""
    words = list(words)
    near = [other for other in words if other.startswith(word)] or difflib.get_close_matches(word, words, n=1, cutoff=0.7)
    return f", did you mean {near[0]}?" if near else ""
