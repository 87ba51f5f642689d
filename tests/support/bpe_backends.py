"""Tokenizers for property tests: byte-level BPE with random merges under the splitting rules of the supported families."""

import tokenizers
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

_CONTRACTIONS, _LINES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(letters: str, digits: str, no_signs: str) -> pre_tokenizers.PreTokenizer:
    words, signs = rf"[^\r\n\p{{L}}\p{{N}}]?{letters}+", rf" ?[^\s{no_signs}\p{{N}}]+[\r\n]*"
    pattern = tokenizers.Regex("|".join((_CONTRACTIONS, words, digits, signs, _LINES)))
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), _bytes(use_regex=False)])


def _bytes(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


SPLITS = {
    "gpt2": lambda: _bytes(use_regex=True),
    "digits": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), _bytes(use_regex=True)]),
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes(use_regex=True)]),
    "llama3": lambda: _gpt4(r"\p{L}", r"\p{N}{1,3}", r"\p{L}"),
    "qwen2": lambda: _gpt4(r"\p{L}", r"\p{N}", r"\p{L}"),
    "qwen35": lambda: _gpt4(r"[\p{L}\p{M}]", r"\p{N}", r"\p{L}\p{M}"),
}
SIGNS = [
    *"abAs'12!.<>",
    " ",
    "\n",
    "\r",
    "\t",
    "\x04",
    "\x1c",
    "\x85",
    "\xa0",
    "\u200b",
    "\u3000",
    "é",
    "日",
    "🙂",
    "हि",
    "\u1fbe",
]
SIGNS += ["\u0301", "\u0323", "\u0308", "\u0338", "\u03b9", "\u3099", "か", "\u1112", "\u1161", "\u11ab"]
SIGNS += ["\u0958", "\ufb1d", "\u212b"]  # NFC makes two of each of the first two
SIGNS += ["<|x|>", "<|x", "ab\n", "'s"]
SPECIAL, ADDED = "<|x|>", "ab\n"


def make_backend(
    split: str, pairs: list[tuple[int, int]], *, nfc: bool, whole_words: bool, silent: list[str], signs: list[str] = SIGNS
) -> tokenizers.Tokenizer:
    """Merges join what stands at two places of the vocabulary so far; `silent` symbols have no token."""
    spell = _bytes(use_regex=False).pre_tokenize_str
    alphabet = [symbol for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()) if symbol not in silent]
    pool = [symbol for symbol in dict.fromkeys("".join(spell(sign)[0][0] for sign in signs)) if symbol in alphabet]
    merges = []
    for left, right in pairs:
        pair = pool[left % len(pool)], pool[right % len(pool)]
        if "".join(pair) not in pool and len("".join(pair)) < 12:
            merges.append(pair)
            pool.append("".join(pair))
    vocabulary = list(dict.fromkeys([*alphabet, *pool]))
    model = models.BPE(vocab={token: at for at, token in enumerate(vocabulary)}, merges=merges, ignore_merges=whole_words)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = SPLITS[split]()
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([tokenizers.AddedToken(SPECIAL, normalized=False)])
    backend.add_tokens([tokenizers.AddedToken(ADDED, normalized=True)])
    return backend


def backends(signs: list[str] = SIGNS) -> st.SearchStrategy[tokenizers.Tokenizer]:
    """All kinds."""
    places = st.integers(0, 300)
    return st.builds(
        make_backend,
        st.sampled_from(sorted(SPLITS)),
        st.lists(st.tuples(places, places), min_size=5, max_size=120),
        nfc=st.booleans(),
        whole_words=st.booleans(),
        silent=st.sampled_from([[], [], ["Ħ"], ["!", "Ć"], ["Ġ"], ["Ċ", "b"]]),
        signs=st.just(signs),
    )


def texts(signs: list[str] = SIGNS) -> st.SearchStrategy[str]:
    """Signs alone, runs of one, and mixtures of two: long beside the windows of these tests."""
    run = st.builds(lambda sign, count: sign * count, st.sampled_from(signs), st.sampled_from([1, 1, 2, 3, 40, 130]))
    mixed = st.builds(lambda a, b, bits: "".join(b if bit else a for bit in bits), *[st.sampled_from(signs)] * 2, _BITS)
    return st.lists(st.one_of(run, run, mixed), max_size=12).map("".join)


_BITS = st.lists(st.booleans(), min_size=30, max_size=120)
