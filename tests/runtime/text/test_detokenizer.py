"""Text token by token: joined it is the text of all tokens, and no piece ever shows half a character."""

from byte_tokenizer import EOS, ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from paceline_runtime.text.detokenizer import REPLACEMENT, Detokenizer, token_text

# Characters of one to four bytes, U+FFFD itself among them.
TEXT = st.text(st.sampled_from("aé世🙂" + REPLACEMENT), max_size=30)
BYTES = st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xE4, 0xB8, 0x96, 0xF0, 0x9F, 0x99, 0x82, 0xFF]), max_size=30)


class MultiByteTokenizer:
    """Tokens are pieces of bytes of any length, as in a byte-level BPE vocabulary."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def decode(self, ids: list[int]) -> str:
        """Lossy, as the real decoders are."""
        return b"".join(self._pieces[token] for token in ids).decode(errors="replace")


def stream(tokenizer: ByteTokenizer | MultiByteTokenizer, ids: list[int], prompt_ids: list[int] | None = None) -> list[str]:
    """The pieces of text, with what `flush` adds as the last."""
    detokenizer = Detokenizer(tokenizer.decode, prompt_ids or [])
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@given(BYTES)
def test_pieces_joined_are_the_whole_text_for_any_bytes(ids: list[int]) -> None:
    """Also when the bytes form no characters."""
    tokenizer = ByteTokenizer()

    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(TEXT, st.data())
def test_tokens_may_cut_characters_anywhere(text: str, data: st.DataObject) -> None:
    """One token may end a character, hold others and begin the next."""
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    assert "".join(stream(MultiByteTokenizer(pieces), list(range(len(pieces))))) == text


@given(TEXT.filter(lambda text: REPLACEMENT not in text))
def test_no_piece_shows_half_a_character(text: str) -> None:
    """Every piece of a well-formed text is well-formed."""
    pieces = stream(ByteTokenizer(), list(text.encode()))

    assert all(REPLACEMENT not in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == list(text)


@given(BYTES, st.integers(0, 12))
def test_control_tokens_within_a_character_change_nothing(ids: list[int], num_control: int) -> None:
    """They have no text, but they push what is held out of the decoder's context."""
    mixed = [token for byte in ids for token in (byte, *[EOS] * num_control)]

    assert "".join(stream(ByteTokenizer(), mixed)) == ByteTokenizer().decode(mixed)


def test_a_character_begun_in_the_prompt_is_finished_by_the_answer() -> None:
    """Prompts of token ids may end anywhere."""
    first, *rest = "é".encode()

    assert stream(ByteTokenizer(), rest, [first]) == ["é", ""]


class SpaceStrippingTokenizer:
    """As SentencePiece decoders do: words carry their space, and the very first loses it."""

    def decode(self, ids: list[int]) -> str:
        """Words by number."""
        return "".join(f" w{token}" for token in ids)[1:]


def test_an_answer_keeps_the_space_between_it_and_the_prompt() -> None:
    """With the prompt as context the decoder sees that the answer is not the beginning."""
    detokenizer = Detokenizer(SpaceStrippingTokenizer().decode, [1, 2])

    assert [detokenizer.push(3), detokenizer.push(4)] == [" w3", " w4"]


WORDS = ["▁to", "▁", "é", "."]
BYTE_FALLBACK = Tokenizer(
    models.BPE(vocab={t: n for n, t in enumerate([f"<0x{b:02X}>" for b in range(256)] + WORDS)}, merges=[])
)
BYTE_FALLBACK.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def in_bytes(text: str) -> list[int]:
    """The ids of a text that the vocabulary has no tokens for."""
    return list(text.encode())


@given(st.lists(st.sampled_from([*map(in_bytes, "aé世🙂"), [256], [257], [258], [259]]), max_size=12), st.data())
def test_characters_in_byte_tokens_are_whole_however_many_follow_each_other(
    parts: list[list[int]], data: st.DataObject
) -> None:
    """The decoder of Llama 2, Mistral and Gemma shows a whole run of bytes as U+FFFD while its last character is begun."""
    ids = [256, *(token for part in parts for token in part)]
    num_prompt = data.draw(st.integers(0, len(ids)))
    whole = BYTE_FALLBACK.decode(ids)
    shown = BYTE_FALLBACK.decode(ids[:num_prompt])

    pieces = stream(BYTE_FALLBACK, ids[num_prompt:], ids[:num_prompt])

    assert whole.endswith("".join(pieces))
    assert all(REPLACEMENT not in piece for piece in pieces)
    if REPLACEMENT not in shown:
        assert shown + "".join(pieces) == whole


def test_a_byte_that_no_character_begins_with_does_not_hold_up_what_follows() -> None:
    """And what was whole before it stays."""
    ids = [*in_bytes("🙂"), 0xFF, 256, *in_bytes("🙂")]

    assert stream(BYTE_FALLBACK, ids) == ["", "", "", "🙂", "", REPLACEMENT + " to", "", "", "", "🙂", ""]


@given(st.lists(st.sampled_from([256, 257, 258, 259, 0x41]), max_size=12))
def test_texts_of_tokens_joined_are_the_text(ids: list[int]) -> None:
    """With the spaces that the decoder strips where a token is alone; words that differ in them alone are not the same."""
    texts = [token_text(BYTE_FALLBACK.decode, token) for token in ids]

    assert "".join(texts) == BYTE_FALLBACK.decode([259, *ids])[1:]


def test_part_of_a_character_is_no_text_of_a_token() -> None:
    """Twice in a row it is none either."""
    assert token_text(BYTE_FALLBACK.decode, 0xE4) == token_text(MultiByteTokenizer([b"\xa9\xc3"]).decode, 0)[:1] == REPLACEMENT
