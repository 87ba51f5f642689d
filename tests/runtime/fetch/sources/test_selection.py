"""Which files of a repository a model needs. Pure."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.fetch.errors import RefusedError, RequestError
from paceline_runtime.fetch.sources.selection import select

PIECES = st.text(alphabet="ab./\\:@#?%- \0é~[]0", max_size=12)


def test_selection_takes_what_the_runtime_reads() -> None:
    """Safetensors before GGUF, the plain layout before a publisher's own, no pickles."""
    names = {"config.json", "tokenizer.model", "a.safetensors", "consolidated.safetensors", "m.gguf", "pytorch_model.bin"}

    assert select(names) == {"config.json", "tokenizer.model", "a.safetensors"}
    assert select(names, include=["*.gguf"]) == {"m.gguf"}
    assert select(names, exclude=["a.*"]) == {"config.json", "tokenizer.model", "consolidated.safetensors"}


def test_a_pattern_that_brings_nothing_is_refused() -> None:
    """Beside one that does it would go unseen, until the model is loaded without the file."""
    with pytest.raises(RequestError, match=r"--include tokenizer\.jsn matches no file"):
        select({"m.gguf", "tokenizer.json"}, include=["*.gguf", "tokenizer.jsn"])


def test_shards_of_one_gguf_are_one_model() -> None:
    """Two quantizations are a question for the user, two shards are not."""
    shards = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}

    assert select(shards) == shards
    with pytest.raises(RequestError, match=r"2 GGUF models.*m\.gguf, n\.gguf"):
        select(shards | {"n.gguf"})


def test_pickles_alone_are_no_model() -> None:
    """They run code when they are loaded."""
    with pytest.raises(RefusedError, match="no safetensors and no GGUF"):
        select({"config.json", "pytorch_model.bin"})


@given(st.sets(st.sampled_from(["a.json", "b.gguf", "c/d.safetensors", "e.safetensors"])), st.lists(PIECES, max_size=2))
def test_selection_invents_no_name(names: set[str], globs: list[str]) -> None:
    """Whatever the globs, only listed names come out."""
    with contextlib.suppress(RequestError, RefusedError):
        assert select(names, globs) <= names
