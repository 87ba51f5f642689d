"""A GGUF's tensors under the names that safetensors checkpoints of the family have. `gguf_checkpoint` uses it.

Names of GGUF: the format page and the converters of llama.cpp.
"""

from __future__ import annotations

import re

from paceline_compat.facts.families import GgufForm
from paceline_compat.facts.gguf_rope import DIVISORS
from paceline_compat.formats.gguf_header import GgufHeader
from paceline_compat.formats.tensors import TensorInfo, renamed

EMBEDDING = "model.embed_tokens.weight"
TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")


def our_tensors(header: GgufHeader, form: GgufForm) -> dict[str, TensorInfo]:
    """The tensor table but for rope's divisors, which are facts. Names that the form does not know stay as they are."""
    tensors = {name: info for name, info in header.tensors.items() if name != DIVISORS}
    return renamed(header.source.name, tensors, lambda stored: _our_name(stored, form)) if form.modules else tensors


def _our_name(stored: str, form: GgufForm) -> str:
    match = _LAYER_TENSOR.fullmatch(stored)
    if match is None or match[2] not in form.modules:
        return TOP.get(stored, stored)
    return f"model.layers.{match[1]}.{form.modules[match[2]]}.{match[3]}"
