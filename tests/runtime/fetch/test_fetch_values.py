"""The pure parts: names, selection, signatures, Retry-After."""

import contextlib
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.fetch.arguments import display, source
from paceline_runtime.fetch.client import retry_after_s
from paceline_runtime.fetch.errors import IntegrityError, RefusedError, RequestError
from paceline_runtime.fetch.paths import safe_path
from paceline_runtime.fetch.sources.environment import address, credential
from paceline_runtime.fetch.sources.selection import select
from paceline_runtime.fetch.sources.sigv4 import Credentials, SigV4Auth
from paceline_runtime.fetch.transfer.manifest import FetchedFile, Manifest, read_manifest, request_key, write_manifest

PIECES = st.text(alphabet="ab./\\:@#?%- \0é~[]0", max_size=12)


@given(PIECES)
def test_a_safe_path_never_leaves_its_folder(name: str) -> None:
    """Accepted names resolve below the folder and to themselves."""
    try:
        path = safe_path(name)
    except IntegrityError:
        return
    root = PurePosixPath("/models/m")
    assert ".." not in PurePosixPath(path).parts
    assert str((root / path).relative_to(root)) == name


@pytest.mark.parametrize("name", ["x.partial", ".paceline-fetch.json", "a" * 201, "", "a//b", "./a", "line\nbreak"])
def test_names_of_our_own_and_unprintable_ones_are_refused(name: str) -> None:
    """They would break bookkeeping or terminals."""
    with pytest.raises(IntegrityError):
        safe_path(name)


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


# The worked examples of the S3 API reference, "Signature Calculations for the Authorization Header".
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize(
    ("target", "headers", "signature"),
    [
        ("/test.txt", {"Range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_equal_the_published_examples(target: str, headers: dict[str, str], signature: str) -> None:
    """Known answers, so that the fake store of the other tests may trust the same code."""
    auth = SigV4Auth(EXAMPLE, "us-east-1", now=lambda: datetime(2013, 5, 24, tzinfo=UTC))
    request = httpx.Request("GET", f"https://examplebucket.s3.amazonaws.com{target}", headers=headers)

    signed = next(auth.auth_flow(request))

    assert signed.headers["authorization"].endswith(f"Signature={signature}")


def test_credentials_do_not_show_in_reprs() -> None:
    """Tracebacks and debuggers print reprs."""
    credentials = Credentials("id", "the-secret", "the-session")

    assert "the-s" not in repr(SigV4Auth(credentials, "r"))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
        ("Tue, 31 Dec 2024 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("Wed, 01 Jan 99999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_in_both_forms(value: str | None, seconds: float | None) -> None:
    """Seconds or a date; nonsense counts as absent."""
    assert retry_after_s(value, datetime(2025, 1, 1, tzinfo=UTC)) == seconds


@pytest.mark.parametrize("value", ["", "ftp://h", "http://", "http://h:x", "https://u:p@h", "https://h?x=1", "h:80"])
def test_an_endpoint_must_be_a_plain_address(value: str) -> None:
    """The message names the variable and not what may be a password in it."""
    with pytest.raises(RequestError, match="HF_ENDPOINT") as caught:
        address({"HF_ENDPOINT": value}, "HF_ENDPOINT", "hf")

    assert "u:p" not in str(caught.value)


def test_a_broken_credential_is_refused_without_quoting_it() -> None:
    """The HTTP library's own error would quote it; a line end at its end is forgiven."""
    assert credential({"HF_TOKEN": "hf_abc\n"}, "HF_TOKEN") == "hf_abc"
    with pytest.raises(RequestError, match="HF_TOKEN holds characters") as caught:
        credential({"HF_TOKEN": "hf_abc\ndef"}, "HF_TOKEN")
    assert "hf_abc" not in str(caught.value)


def test_manifest_round_trip_and_damage(tmp_path: Path) -> None:
    """What is written is read; a missing, damaged or hostile one counts as none."""
    manifest = Manifest("key", "hf://a/b", "c0ffee", (FetchedFile("config.json", 2, "id", "sha256:00"),))
    write_manifest(tmp_path, manifest)
    read = read_manifest(tmp_path)
    is_whole = manifest.is_whole(tmp_path)
    (tmp_path / "config.json").write_bytes(b"{}")
    is_whole_then = manifest.is_whole(tmp_path)
    (tmp_path / ".paceline-fetch.json").write_text('{"version": 1}')
    damaged = read_manifest(tmp_path)
    write_manifest(tmp_path, Manifest("key", "s", "", (FetchedFile("../evil", 2, "id"),)))

    assert read == manifest
    assert (is_whole, is_whole_then) == (False, True)
    assert damaged is None
    assert read_manifest(tmp_path) is None


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
