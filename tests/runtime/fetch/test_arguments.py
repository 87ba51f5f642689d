"""Requests as they are written: what makes no sense is refused with what to change, and no secret is shown."""

import argparse
import contextlib
from pathlib import Path

import pytest
from fetch_runner import fetch_now
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.fetch import add_arguments, run
from paceline_runtime.fetch.arguments import display, source
from paceline_runtime.fetch.errors import IntegrityError, RequestError
from paceline_runtime.fetch.transfer.manifest import (
    request_key,
)


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(argv))


def test_no_folder_is_not_this_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is not set would fill the current one with gigabytes."""
    with pytest.raises(SystemExit):
        _run("hf://org/model", "")

    assert "argument DIR: is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [("hf://a/b",), ("hf://a/b", "d", "--max-concurrency", "0"), ("hf://a/b", "d", "--timeout-s", "nan"),
     ("hf://a/b", "d", "--max-retries", "-1"), ("hf://a/b", "d", "--progress", "loud")],
)  # fmt: skip
def test_impossible_arguments_are_refused_by_the_parser(argv: tuple[str, ...]) -> None:
    """Exit code 2, as argparse has it."""
    with pytest.raises(SystemExit) as caught:
        _run(*argv)

    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("uri", "flags", "environment", "said"),
    [
        ("hf://org/model", (), {}, "HF_ENDPOINT"),
        ("s3://bucket/x", (), {}, "AWS_ENDPOINT_URL"),
        ("s3://bucket/x", (), {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a"}, "belong together"),
        ("hf://model", (), {}, "hf://org/name"),
        ("hf://org/model@a", ("--revision", "b"), {}, "keep one"),
        ("s3://bucket/x", ("--revision", "b"), {}, "--revision belongs to hf://"),
        ("oci://registry/model", (), {}, "oci://registry/repository:tag"),
        ("https://host/file", ("--plain-http",), {}, "--plain-http belongs to oci://"),
        ("http://host/file", (), {}, "only with #sha256"),
        ("https://host/file#sha256=12", (), {}, "64 hexadecimal digits"),
        ("https://user:password@host/file", (), {}, "without user or password"),
        ("https://host/", (), {}, "one file"),
        ("gs://bucket/x", (), {}, "gs:// is none of"),
    ],
)
def test_a_request_that_cannot_work_says_what_to_change(
    tmp_path: Path, uri: str, flags: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    """Exit code 2, the field and the remedy, no network, no secret."""
    result = fetch_now(uri, tmp_path, *flags, environment=environment)

    assert result.code == 2
    assert said in result.error
    assert "password@" not in result.error


PIECES = st.text(alphabet="ab./\\:@#?%- \0é~[]0", max_size=12)


@given(st.sampled_from(["hf", "s3", "oci", "https", "http", "x"]), PIECES, st.one_of(st.none(), PIECES))
def test_any_text_is_a_source_or_a_clear_refusal(scheme: str, rest: str, revision: str | None) -> None:
    """No other exception reaches the user, and no name that may not be written gets as far as the folder."""
    with contextlib.suppress(RequestError, IntegrityError):
        source(f"{scheme}://{rest}", revision)


def test_what_is_shown_and_stored_of_a_uri_holds_no_signature() -> None:
    """Signed addresses carry it in their query; the request's key is a hash."""
    uri = "https://h/f.gguf?X-Amz-Signature=secret"

    assert display(uri) == "https://h/f.gguf"
    assert "secret" not in request_key(uri, None, [], [])
