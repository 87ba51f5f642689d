"""Stop strings: the same end and the same text in whatever pieces a stream comes, and nothing shown too early."""

from hypothesis import given
from hypothesis import strategies as st
from smollm2 import smollm2_path

from paceline_runtime.params import SamplingParams
from paceline_runtime.text.load import load_tokenizer
from paceline_runtime.text.stops import StopScanner, with_token_stops

# Few letters, so that stop strings occur, overlap and almost occur.
TEXT = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the same text cut into pieces, empty ones included."""
    text = draw(TEXT)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
    return text, [text[start:end] for start, end in bounds]


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the first stop string to be complete, the longest of those that end there."""
    for end in range(len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def scan(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    """What a scanner releases piece by piece, and the stop string it found."""
    scanner = StopScanner(stops)
    released = [scanner.push(piece) for piece in pieces]
    return [*released, scanner.flush()], scanner.stop


@given(chunked(), STOPS)
def test_any_chunking_gives_the_text_before_the_first_stop(sample: tuple[str, list[str]], stops: list[str]) -> None:
    """The law: pieces do not matter."""
    text, pieces = sample
    released, stop = scan(pieces, stops)

    assert ("".join(released), stop) == expected(text, stops)


@given(TEXT, STOPS)
def test_nothing_released_is_ever_taken_back(text: str, stops: list[str]) -> None:
    """After each character, what is shown is a beginning of the final text, whatever may follow."""
    scanner = StopScanner(stops)
    shown = ""
    for position, character in enumerate(text, start=1):
        shown += scanner.push(character)
        for rest in ("", *stops):
            assert expected(text[:position] + rest, stops)[0].startswith(shown)


@given(TEXT, STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop(text: str, stops: list[str]) -> None:
    """What is not shown yet is a proper beginning of a stop string, so readers never wait without a reason."""
    scanner = StopScanner(stops)
    shown = scanner.push(text)
    held = text[len(shown) :]

    assert scanner.stop or not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_after_a_stop_nothing_more_comes() -> None:
    """Tokens behind the end, from the same accepted run, stay invisible."""
    scanner = StopScanner(["!"])

    assert [scanner.push("a!b"), scanner.push("c"), scanner.flush()] == ["a", "", ""]


def test_without_stop_strings_everything_passes_at_once() -> None:
    """Most requests have none."""
    assert scan(["a", "b"], []) == (["a", "b", ""], None)


def test_stop_strings_that_are_a_special_token_are_stop_tokens():
    """Of a real vocabulary: ends, control tokens that are none, once each; what only holds one stays a text alone."""
    tokenizer = load_tokenizer(smollm2_path())
    stops = ("a", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>user", "im_end", "<filename>")
    (end,), (start,) = tokenizer.encode("<|im_end|>"), tokenizer.encode("<|im_start|>")
    (name,) = tokenizer.encode("<filename>")
    found = with_token_stops(SamplingParams(stop=stops, stop_token_ids=(7, start)), tokenizer.special_id)

    assert ((7, start, end, name), stops) == (found.stop_token_ids, found.stop)
    plain = SamplingParams(stop=("a",), stop_token_ids=(7,))
    assert plain is with_token_stops(plain, tokenizer.special_id)
