"""Which files of a repository a model needs. Pure: names in, names out."""

import fnmatch
import re
from collections.abc import Iterable, Sequence

from paceline_runtime.fetch.errors import RefusedError, RequestError

# Configuration, tokenizers in all their forms, chat templates. Weights are chosen below.
_SUPPORT = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "additional_chat_templates/*.jinja")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


def select(names: Iterable[str], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> set[str]:
    """The names to fetch.

    Without `include`: what the runtime reads, which is support files and either the safetensors weights or the one GGUF
    model. `include` globs replace that choice; `exclude` globs are taken off either. RequestError for an `include` that
    the source has nothing for: the model would be loaded without the file that the glob was to bring.
    """
    names = set(names)
    if idle := [pattern for pattern in include if not any(_matches(name, [pattern]) for name in names)]:
        raise RequestError(f"--include {', '.join(idle)} matches no file of the source")
    candidates = {name for name in names if not _matches(name, exclude)}
    chosen = {name for name in candidates if _matches(name, include)} if include else _needed(candidates)
    if not chosen:
        raise RequestError("--include and --exclude leave no file to fetch")
    return chosen


def gguf_model(name: str) -> str:
    """The name of the model that a GGUF file is, or is a shard of."""
    return _SHARD.sub("", name)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _needed(names: set[str]) -> set[str]:
    top = {name for name in names if "/" not in name}
    support = {name for name in top if _matches(name, _SUPPORT)} | {
        name for name in names if "/" in name and _matches(name, _SUPPORT[-1:])
    }
    return support | _weights(top)


def _weights(names: set[str]) -> set[str]:
    tensors = {name for name in names if name.endswith(".safetensors")}
    # Some publishers add the same weights a second time, in their own layout.
    plain = {name for name in tensors if not name.startswith("consolidated")}
    return plain or tensors or _only_gguf({name for name in names if name.endswith(".gguf")})


def _only_gguf(files: set[str]) -> set[str]:
    models = sorted({gguf_model(name) for name in files})
    if not models:
        raise RefusedError("the source holds no safetensors and no GGUF weights; name other files with --include")
    if len(models) > 1:
        raise RequestError(f"the source holds {len(models)} GGUF models; choose one with --include: {', '.join(models)}")
    return files
