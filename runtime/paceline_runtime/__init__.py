"""The serving runtime. `LLM` and `SamplingParams` are the offline interface; `paceline serve` is the online one.

Importing this package imports no torch: the operator's tools, the server process and the scheduler share it.
"""

from typing import TYPE_CHECKING, Any

from paceline_runtime.params import SamplingParams

if TYPE_CHECKING:
    from paceline_runtime.llm import LLM

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Resolve `LLM` on first use, since it imports torch."""
    if name != "LLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paceline_runtime.llm import LLM

    return LLM
