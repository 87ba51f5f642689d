"""Renders a model's chat template, in the Jinja dialect that transformers defined. The tokenizer calls it.

Templates come with checkpoints and are not trusted: they run in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from paceline_runtime.text.content_forms import find_forms, shaped


class ChatTemplateError(ValueError):
    """Messages that the template refuses, or a template that does not run."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is all there is to it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template; `tokens` are the special tokens it may name (`bos_token`, `eos_token` ...)."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source, self._tokens = source, dict(tokens)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error
        self._forms = find_forms(lambda messages, opens: self._rendered(messages, add_generation_prompt=opens, tools=None))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        most_chars: int | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. `variables` are the template's own switches, such as `enable_thinking`; they may replace a token.

        A content that is a string becomes what the template reads. Rendering stops as soon as there are more than `most_chars`.
        """
        try:
            shapely = [shaped(message, self._forms) for message in messages]
        except ValueError as error:
            raise ChatTemplateError(f"the chat template does not take these messages: {error}") from None
        given = {"add_generation_prompt": add_generation_prompt, "tools": tools}
        return self._rendered(shapely, most_chars, **variables, **given)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], most_chars: int | None = None, **variables: Any) -> str:
        parts, num_chars = [], 0
        try:
            for part in self._template.generate({**self._tokens, "documents": None, **variables, "messages": messages}):
                parts.append(part)
                num_chars += len(part)
                if most_chars is not None and num_chars > most_chars:
                    break
            return "".join(parts)
        except Exception as error:  # a template computes: it may divide by zero, recurse or ask for too much memory
            what = str(error) or type(error).__name__
            raise ChatTemplateError(f"the chat template refuses these messages: {what}") from error


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which prompts must not be. Templates also give arguments by their place."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
