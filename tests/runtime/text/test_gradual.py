"""A text a window at a time has the ids that it has as a whole, and what is said of its tokens beforehand is true of them."""

import re
import unicodedata
from collections import Counter

import pytest
import tokenizers
from bpe_backends import SIGNS, SPLITS, backends, make_backend, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smollm2 import smollm2_path
from tokenizers import models, normalizers, pre_tokenizers, processors

from paceline_runtime.text import gradual
from paceline_runtime.text.backend_facts import NFC_SHRINKS, read_facts
from paceline_runtime.text.gradual import WINDOW_CHARS, GradualEncoding
from paceline_runtime.text.load import load_tokenizer
from paceline_runtime.text.tokenizer import Tokenizer

BLANK_SIGNS = [" ", "\n", "\t", "\r", "\x1c", "\x85", "\u3000", "a", "!"]
PLANES = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
CHARS = [chr(code) for code in PLANES]  # all that Unicode has but for private ones
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=300)


class Watched(GradualEncoding):
    """Counts how it came on, and what it had encoded at a time."""

    def __init__(self, backend, text, facts, window_chars=WINDOW_CHARS):
        def encode(window):
            self.longest_chars = max(self.longest_chars, len(window))
            return backend.encode_batch([window], add_special_tokens=False)[0]

        self.longest_chars, self.ways = 0, Counter()
        margin, silent = facts.cut_margin, facts.silent_bytes
        super().__init__(encode, text, margin=margin, silent=silent, window_chars=window_chars)

    def _take(self, window, num_tokens, next_start, expected=None):
        self.ways["inside a word" if expected else "between words"] += 1
        super()._take(window, num_tokens, next_start, expected)

    def _widen(self, end):
        self.ways["wider"] += 1
        super()._widen(end)

    def whole(self):
        while not self.is_done:
            self.advance()
        return self.ids


@pytest.mark.parametrize("signs", [SIGNS, BLANK_SIGNS], ids=["signs", "blanks"])
def test_windows_give_the_ids_of_the_whole_text(signs):
    """Whatever the rules, merges, normalizer and text, long words and long blanks too."""
    ways = Counter()

    @SLOW
    @given(backends(signs), texts(signs), st.sampled_from([24, 33, 40, 64, 100]))
    def law(backend, text, window_chars):
        facts = read_facts(backend)
        watched = Watched(backend, text, facts, window_chars)
        whole = backend.encode(text, add_special_tokens=False).ids

        assert whole == watched.whole()
        if facts.longest_token_bytes is not None:
            assert len(whole) * facts.longest_token_bytes >= len(text.encode().translate(None, facts.silent_bytes))
        ways.update(watched.ways)

    law()
    assert ways.keys() == {"inside a word", "between words", "wider"}


def test_a_cut_that_the_next_window_belies_is_taken_back():
    """Here a token ends with the text's last letter: windows before that one see the letter of its beginning alone."""
    chain = [("a", "a" * length + "b") for length in range(40)]
    vocabulary = ["a", "b", *(left + right for left, right in chain)]
    backend = tokenizers.Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(vocabulary)}, merges=chain))
    backend.pre_tokenizer = SPLITS["gpt2"]()
    facts = read_facts(backend)
    ways = Counter()
    for num_letters in range(30, 200):
        watched = Watched(backend, "a" * num_letters + "b", facts, window_chars=33)
        assert backend.encode("a" * num_letters + "b").ids == watched.whole()
        ways += watched.ways

    assert ways["inside a word"] > 100 < ways["wider"]


@pytest.fixture(scope="module")
def smollm2():
    """A real vocabulary."""
    return load_tokenizer(smollm2_path())


LONG_TEXTS = {
    "words": "The river runs through the valley, past the old mill. ",
    "code": "def f(x):\n    return {'a': x**2, \"b\": [1, 22, 333]}\n\n\n",
    "without blanks": "我们的世界很大，世界很大。",
    "one letter": "a",
    "one digit": "7",
    "blanks": " ",
    "a break, then blanks": "\n" + " " * 70_000,
    "signs, then breaks": "!" + "\n" * 70_000,
    "special": "<|im_start|>user\nhi<|im_end|>\n",
    "signs": "=-",
    "emoji": "🙂👩‍👩‍👧",
}


@pytest.mark.parametrize("unit", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_of_a_long_text_no_more_than_a_window_is_encoded_at_a_time(smollm2, unit):
    """Without a blank in it, too: it is time and memory of the longest piece that a server feels."""
    text = unit * (150_000 // len(unit) + 1)
    watched = Watched(smollm2._backend, text, smollm2._encoder.facts)

    assert smollm2.encode(text) == watched.whole()
    assert watched.longest_chars <= WINDOW_CHARS + 1


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("unit", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_every_family_cuts_every_long_text(split, unit):
    """NFC or not."""
    pairs = [(at, at) for at in range(40)] + [(0, 1), (11, 11), (12, 12), (11, 12)]
    for nfc in (False, True):
        backend = make_backend(split, pairs, nfc=nfc, whole_words=split == "llama3", silent=[])
        text = unit * (3000 // len(unit) + 1)
        watched = Watched(backend, text[:9000], read_facts(backend), 1000)

        assert backend.encode(text[:9000], add_special_tokens=False).ids == watched.whole()
        assert watched.longest_chars <= 1001


def test_tokens_around_a_text_stay_around_it():
    """Those of the post-processor, whichever way it is encoded; and places are not shortened by one that would."""
    backend = make_backend("gpt2", [(0, 1)], nfc=False, whole_words=False, silent=[])
    around = processors.TemplateProcessing(single="<|x|> $A b", special_tokens=[("<|x|>", 256), ("b", 65)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), around])
    texts = ["", "a", "  b a  ", "x  " * 30_000]
    expected = [backend.encode(text).ids for text in texts]
    plain = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None)

    for text, with_special, without in zip(texts, expected, plain, strict=True):
        for ids, special in ((with_special, True), (without, False)):
            encoding = tokenizer.gradually(text, special)
            while not encoding.is_done:
                encoding.advance()
            assert ids == encoding.ids == tokenizer.encode(text, special)


def _changed(**parts):
    backend = make_backend("gpt2", [(0, 1)], nfc=False, whole_words=False, silent=[])
    for name, part in parts.items():
        if name == "added":
            backend.add_tokens([tokenizers.AddedToken("tok", **part)])
        else:
            setattr(backend, name, part)
    return backend


def _sentencepiece(**options):
    symbols = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "b", "▁a", "▁▁"]
    model = models.BPE(
        vocab={token: at for at, token in enumerate(symbols)},
        merges=[("▁", "a"), ("▁", "▁")],
        **{"byte_fallback": True, **options},
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


WITHOUT_A_BOUND = {
    "takes blanks in": _changed(added={"lstrip": True}),
    "takes blanks in behind": _changed(added={"rstrip": True}),
    "removes accents": _changed(normalizer=normalizers.StripAccents()),
    "strips": _changed(normalizer=normalizers.Strip()),
    "replaces runs": _changed(normalizer=normalizers.Replace(tokenizers.Regex(" +"), " ")),
    "replaces by less": _changed(normalizer=normalizers.Replace("aaaa", "a")),
    "one of several": _changed(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
    "drops blanks": _changed(pre_tokenizer=pre_tokenizers.Whitespace()),
    "drops what splits": _changed(pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
    "unknown words": _changed(model=models.WordPiece(vocab={"[UNK]": 0, "a": 1})),
    "unknown characters": _sentencepiece(byte_fallback=False, unk_token="▁", fuse_unk=True),
}
WITHOUT_A_CUT = {
    "looks around": _changed(added={"single_word": True}),
    "another normalizer": _changed(normalizer=normalizers.NFD()),
    "rules that are not known": _changed(
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(r"(?<=a)b|\s+"), "isolated"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ]
        )
    ),
    "a blank before all": _changed(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "no words": _sentencepiece(),
}


@pytest.mark.parametrize("backend", WITHOUT_A_BOUND.values(), ids=WITHOUT_A_BOUND.keys())
def test_where_a_token_may_swallow_any_text_there_is_no_bound(backend):
    """Nor a cut."""
    facts = read_facts(backend)

    assert (None, None) == (facts.longest_token_bytes, facts.cut_margin)


@pytest.mark.parametrize("backend", WITHOUT_A_CUT.values(), ids=WITHOUT_A_CUT.keys())
def test_where_a_cut_is_not_known_to_be_safe_there_is_none(backend):
    """The text is encoded as one, and its ids are right."""
    text = "a b tok  ab b " * 4000
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None)
    encoding = tokenizer.gradually(text)
    encoding.advance()

    assert read_facts(backend).cut_margin is None
    assert encoding.is_done
    assert tokenizer.encode(text) == encoding.ids


@given(st.text(alphabet="ab é日\n", max_size=80))
def test_the_bound_holds_where_bytes_stand_for_characters(text):
    """As in Llama 2's vocabulary, whose blanks have three bytes."""
    backend = _sentencepiece()

    assert 6 == read_facts(backend).longest_token_bytes
    assert 6 * len(backend.encode(text).ids) >= len(text.encode())


def test_what_is_known_of_the_real_vocabulary(smollm2):
    """Its longest token is a break and 80 blanks. It has no token for some bytes, such as those of control characters."""
    assert 81 == smollm2.longest_token_bytes == max(len(smollm2.decode([at])) for at in range(smollm2.vocab_size))
    assert [] == smollm2.encode("\x04\x1d" * 9000)
    assert 0 == smollm2.fewest_tokens("\x04\x1d" * 9000)
    assert 12 == smollm2.fewest_tokens("a" * 81 * 12) == smollm2.fewest_tokens("a" * (81 * 11 + 1) + "\x04" * 500)


def test_nfc_makes_no_text_shorter_than_is_said():
    """Each character of the result is charged with the longest that its decomposition can come from."""
    decomposed = {char: unicodedata.normalize("NFD", char) for char in CHARS}
    longest: dict[str, float] = {}
    for char, parts in decomposed.items():
        for part in parts:
            longest[part] = max(longest.get(part, 0), len(char.encode()) / len(parts))
    stable = [char for char in CHARS if unicodedata.normalize("NFC", char) == char]
    worst = max(sum(longest[part] for part in decomposed[char]) / len(char.encode()) for char in stable)

    assert 3 < worst <= NFC_SHRINKS
    assert 2 == len(unicodedata.normalize("NFC", "\u1fbe\u0308\u0301").encode())


def test_a_window_begins_only_with_what_nfc_leaves_alone():
    """No second half of a composition, nothing that is reordered."""
    may_begin = {char for char in CHARS if GradualEncoding(lambda text: None, char, margin=0)._may_begin(0)}
    halves = [
        decomposition.split()[1:] for char in CHARS if (decomposition := unicodedata.decomposition(char))[:1] not in ("", "<")
    ]

    assert not {chr(int(half[0], 16)) for half in halves if half} & may_begin
    assert not [char for char in may_begin if unicodedata.combining(char)]
    assert not [char for char in may_begin if unicodedata.normalize("NFC", char) != char]
    assert {"a", " ", "日", "é", "か"} <= may_begin


def test_blanks_are_those_of_the_library():
    """Python takes others for blanks."""
    split = pre_tokenizers.Split(tokenizers.Regex(r"\s"), "isolated")
    theirs = {piece for piece, _ in split.pre_tokenize_str(f"aa{'aa'.join(CHARS)}aa") if len(piece) == 1}

    assert (
        {char for char in CHARS if gradual._BLANKS.match(char)} == theirs != {char for char in CHARS if re.match(r"\s", char)}
    )
