"""A text of too many tokens is known for one before it is tokenized to its end; any other has the ids that it has."""

import pytest
from byte_tokenizer import ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st
from smollm2 import smollm2_path

from paceline_runtime.text.bounded import SHORT_CHARS, BoundedEncoding, TooManyTokensError, check_bytes
from paceline_runtime.text.load import load_tokenizer

WORDS = "The river runs through the valley, past the old mill. "


def _ids(tokenizer, text, most):
    encoding = BoundedEncoding(tokenizer, text, most)
    while not encoding.is_done:
        encoding.advance()
    return encoding.ids


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_the_limit_is_exact(num_tokens, most):
    """As many as may be are as good as none; one more is refused, with how many there are at least."""
    tokenizer = ByteTokenizer()
    if num_tokens <= most:
        assert [120] * num_tokens == _ids(tokenizer, "x" * num_tokens, most)
        return
    with pytest.raises(TooManyTokensError) as refusal:
        _ids(tokenizer, "x" * num_tokens, most)

    assert most < refusal.value.num_tokens <= num_tokens
    assert refusal.value.is_all == (refusal.value.num_tokens == num_tokens)


def test_what_must_be_too_long_is_not_looked_at():
    """By its bytes; short texts are, for the exact count."""
    tokenizer = ByteTokenizer()
    with pytest.raises(TooManyTokensError, match=f"at least {SHORT_CHARS}"):
        _ids(tokenizer, "x" * SHORT_CHARS * tokenizer.longest_token_bytes, SHORT_CHARS - 1)
    assert 0 == tokenizer.num_advances
    check_bytes(tokenizer, "x" * SHORT_CHARS * tokenizer.longest_token_bytes, SHORT_CHARS)

    with pytest.raises(TooManyTokensError, match="the text has 30 tokens"):
        _ids(tokenizer, "x" * 30, 1)
    assert 1 == tokenizer.num_advances


def test_no_more_of_a_real_text_is_tokenized_than_shows_that_it_is_too_long():
    """In a context so large that the bytes say nothing."""
    tokenizer = load_tokenizer(smollm2_path())
    encoding = BoundedEncoding(tokenizer, WORDS * 40_000, 50_000)
    num_known = []
    with pytest.raises(TooManyTokensError) as refusal:
        num_known.extend(len(encoding.ids) for _ in iter(encoding.advance, "never"))

    assert 0 == tokenizer.fewest_tokens(WORDS * 40_000) // 50_000
    assert 3 < len(num_known) < 15
    assert 50_000 < refusal.value.num_tokens < 60_000
