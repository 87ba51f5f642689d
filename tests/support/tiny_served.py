"""A tiny random checkpoint that can be served: weights of `tiny_models`, a byte-level tokenizer, a chat template."""

import json
from pathlib import Path

import tokenizers
from tiny_models import save_tiny
from tokenizers import decoders, models, pre_tokenizers

SPECIAL = ["<pad>", "<eos>", "<user>", "<assistant>"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def save_served(folder: Path) -> Path:
    """Write a llama with everything that `paceline serve` reads; returns its folder."""
    path = save_tiny("llama", folder)
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {word: index for index, word in enumerate(words)}
    # Ids above the bytes are words, so that whatever the model says has a text of its own.
    vocabulary |= {f"Ġw{index}": index for index in range(len(words), 512)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(path / "tokenizer.json"))
    config = {"eos_token": "<eos>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path
