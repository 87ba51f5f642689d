"""Makes text of others fit into a status: reasons of kubelets and controllers, messages of pods and policies. Pure.

The API server refuses a whole status for one word that does not fit the schema, and a model whose status is refused would
look frozen. Everything that `status` publishes goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# As in the CRD: `reason` is one word, and a message is cut to what a reader can take in, far below the schema's length.
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
MAX_REASON = 128
MAX_MESSAGE = 4096
UNNAMED = "Unnamed"


def reason(text: str) -> str:
    """One word that the schema takes: what does not belong into a word is left out."""
    word = re.sub(r"[^A-Za-z0-9_,:]", "", text)
    word = word.lstrip("0123456789_,:")[:MAX_REASON].rstrip(",:")
    return word or UNNAMED


def message(text: str) -> str:
    """Text without what JSON or a terminal cannot show, not longer than a reader can bear."""
    valid = text.encode("utf-8", "replace").decode()
    clean = "".join(c if c.isprintable() or c == "\n" else " " for c in valid).strip()
    return clean if len(clean) <= MAX_MESSAGE else f"{clean[: MAX_MESSAGE - 1]}…"


def bare(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without anybody's text: for an API server that refuses it, as one of an older version may."""
    told = "the API server refuses the text of this condition; the operator's log has it"
    kept = {name: value for name, value in status.items() if name not in ("model", "acceptance", "inspection")}
    conditions = [{**one, "message": told} for one in status.get("conditions", ())]
    if inspection := status.get("inspection"):
        kept["inspection"] = {**inspection, "message": told}
    return {**kept, "conditions": conditions}
