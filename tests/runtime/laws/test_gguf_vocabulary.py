"""A GGUF with a vocabulary as large as those of Llama 3, Qwen 3.5 and Gemma, by every way that reads it."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny_gguf import save_tiny_gguf
from tiny_models import TinyCache, build_reference, logits_of, tiny_prefill
from tokenizers.pre_tokenizers import ByteLevel

from paceline_compat import read_target
from paceline_compat.__main__ import main
from paceline_compat.formats.gguf_cursor import WINDOW_BYTES
from paceline_compat.formats.gguf_header import read_header
from paceline_compat.places.source import LocalSource
from paceline_runtime.loaders import load_target
from paceline_runtime.text.end_tokens import end_ids
from paceline_runtime.text.load import load_tokenizer

NUM_TOKENS = 250_000
ENDS = ["<|begin_of_text|>", "<|eot_id|>"]
NORMAL, CONTROL = 1, 3


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level vocabulary of pairs of bytes, then of three, and what else a converter writes with it."""

    tokens: list[str]
    merges: list[str]
    scores: list[float]
    kinds: list[int]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    alphabet = sorted(ByteLevel.alphabet())
    pairs = [(left, right) for left in alphabet for right in alphabet]
    triples = [(left + middle, right) for left, middle in pairs for right in alphabet[:3]]
    merges = [*pairs, *triples][: NUM_TOKENS - len(alphabet) - len(ENDS)]
    tokens = [*alphabet, *(left + right for left, right in merges), *ENDS]
    kinds = [NORMAL] * (len(tokens) - len(ENDS)) + [CONTROL] * len(ENDS)
    return Vocabulary(tokens, [" ".join(merge) for merge in merges], [-float(index) for index in range(len(tokens))], kinds)


@pytest.fixture(scope="module")
def model(vocabulary):
    sizes = dict(vocab_size=NUM_TOKENS, hidden_size=32, num_attention_heads=2, num_hidden_layers=1, eos_token_id=NUM_TOKENS - 1)
    return build_reference("llama", dtype=torch.float32, tie_word_embeddings=True, **sizes)


@pytest.fixture(scope="module")
def path(vocabulary, model, tmp_path_factory) -> Path:
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.scores": vocabulary.scores,
        "tokenizer.ggml.token_type": vocabulary.kinds,
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.bos_token_id": NUM_TOKENS - 2,
    }
    file = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    return save_tiny_gguf(model, file, tokens=vocabulary.tokens, extra_keys=keys)


def test_the_header_gives_back_the_vocabulary_and_every_tensor(path, vocabulary, model):
    header = read_header(LocalSource(path))
    assert header.data_offset > 5 * WINDOW_BYTES
    assert NUM_TOKENS == len(vocabulary.tokens)
    assert vocabulary.tokens == header.strings("tokenizer.ggml.tokens")
    assert vocabulary.merges == header.strings("tokenizer.ggml.merges")
    assert vocabulary.scores == header.numbers("tokenizer.ggml.scores")
    assert vocabulary.kinds == header.numbers("tokenizer.ggml.token_type")
    assert len(model.state_dict()) - 1 == len(header.tensors)


def test_check_reads_it(path, capsys):
    assert NUM_TOKENS == read_target(str(path)).vocab_size
    assert 0 == main(["check", "--target", str(path)])
    assert f"{path}: fits\n" == capsys.readouterr().out


def test_the_loader_makes_the_model_that_was_written(path, model):
    ours = load_target(path, dtype=torch.float32)
    ids = [(7919 * index) % NUM_TOKENS for index in range(40)]
    cache = TinyCache(ours.facts, ours.dtype)
    with torch.no_grad():
        actual = logits_of(ours, tiny_prefill(cache, [(0, 0, ids)]), cache)
        expected = model(torch.tensor([ids])).logits[0]
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


def test_the_tokenizer_has_every_token_at_its_id(path, vocabulary):
    tokenizer = load_tokenizer(path)
    assert vocabulary.tokens == [tokenizer.token(index) for index in range(NUM_TOKENS)]
    assert (NUM_TOKENS, NUM_TOKENS - 2) == (tokenizer.vocab_size, tokenizer.bos_id)
    assert (NUM_TOKENS - 1,) == end_ids(path, ())
    text = "naïve café, 日本語 🙂 x!!"
    ids = tokenizer.encode(text)
    assert NUM_TOKENS - 2 == ids[0]
    assert text == tokenizer.decode(ids)
    assert any(len(vocabulary.tokens[index]) > 1 for index in ids[1:])
