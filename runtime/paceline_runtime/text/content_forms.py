"""How a chat template reads the `content` of a message: as a text, or as parts of which some are text.

Found out once for each role, by rendering a probe both ways: a template that goes through parts shows nothing of a text, and
raises nothing. Called by `ChatTemplate`; it knows templates by what they render.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Form = Literal["text", "parts", "lost"]
"""`lost`: the template shows it in neither form."""
Message = Mapping[str, Any]
_PROBE, _OTHER = "qprobeq", "qotherq"


def find_forms(render: Callable[[Sequence[Message], bool], str]) -> dict[str, Form]:
    """By role; `render` takes messages and whether the assistant's turn is to be opened, and raises ValueError.

    A role that the template refuses has a text: the template tells why, once it is asked.
    """
    user = _form(render, "user", [], [])
    opening, reply = [_message("user", _OTHER, user)], [_message("assistant", _OTHER, user)]
    assistant = _form(render, "assistant", opening, [])
    if assistant == "lost":  # some show an assistant's turn only between two of the user
        assistant = _form(render, "assistant", opening, opening)
    if user == "lost":
        user = _form(render, "user", [*opening, *reply], [])
    return {"system": _form(render, "system", [], opening), "user": user, "assistant": assistant}


def shaped(message: Message, forms: Mapping[str, Form]) -> Message:
    """A message as the template reads it. ValueError if it would leave the text out."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, str):
        return message
    form = forms.get(str(role), "text")
    if form == "lost" and content.strip():
        raise ValueError(f"it leaves out what is said by role {role!r}")
    return _message(str(role), content, form) | {name: message[name] for name in message if name not in ("role", "content")}


def _form(
    render: Callable[[Sequence[Message], bool], str], role: str, before: Sequence[Message], after: Sequence[Message]
) -> Form:
    found: Form = "text"
    for form in ("text", "parts"):
        messages = [*before, _message(role, _PROBE, form), *after]
        try:
            text = render(messages, messages[-1]["role"] == "user")
        except ValueError:
            continue
        if _PROBE in text.casefold():
            return form
        found = "lost"
    return found


def _message(role: str, text: str, form: Form) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}] if form == "parts" else text}
