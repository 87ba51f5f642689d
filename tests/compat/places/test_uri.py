"""One grammar for every place of a checkpoint: forms taken apart, refusals, and the CRD's patterns held against it."""

import contextlib
from collections import Counter

import pytest
from crd_rules import source_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_compat import SourceError, open_location
from paceline_compat.places.uri import (
    ClaimUri,
    HubUri,
    OciUri,
    PathUri,
    S3Uri,
    UriError,
    WebUri,
    at_revision,
    parse_uri,
    web_address,
)
from paceline_operator.spec.source import Source, Target
from paceline_runtime.fetch.arguments import source

DIGEST = "ab" * 32
PIECES = st.text(alphabet="ab./\\:@#?%- \0é~[]0", max_size=12)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("hf://org/name", HubUri("org/name", None, None)),
        ("hf://org/na.me@v1.0", HubUri("org/na.me", "v1.0", None)),
        ("hf://org/name@abc/file-Q4.gguf", HubUri("org/name", "abc", "file-Q4.gguf")),
        ("hf://org/name/q4/sub/m.gguf", HubUri("org/name", None, "q4/sub/m.gguf")),
        ("hf://org/name@refs%2Fpr%2F1/q.gguf", HubUri("org/name", "refs/pr/1", "q.gguf")),
        ("s3://bucket/a/b/", S3Uri("bucket", "a/b")),
        ("s3://bucket", S3Uri("bucket", "")),
        ("https://h:8443/a%20b.gguf?X=1", WebUri("https://h:8443/a%20b.gguf?X=1", "a b.gguf", None)),
        (f"http://h/f#sha256={DIGEST.upper()}", WebUri("http://h/f", "f", DIGEST)),
        ("oci://r.io:5000/a/b:v1", OciUri("r.io:5000", "a/b", "v1")),
        (f"oci://r.io/a:v1@sha256:{DIGEST}", OciUri("r.io", "a", f"sha256:{DIGEST}")),
        ("pvc://claim/path/", ClaimUri("claim", "/path")),
        ("pvc://claim", ClaimUri("claim", "")),
        ("file:///models/x", PathUri("/models/x")),
        ("/models/x", PathUri("/models/x")),
    ],
)
def test_uri_forms(text, uri):
    """Each documented form, taken apart."""
    assert uri == parse_uri(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf://name",
        "hf://org/name/folder",
        "hf://org/name//x.gguf",
        "hf://org/name/./x.gguf",
        "hf://org/name/a/../x.gguf",
        "hf://./name",
        "hf://org/name@/x.gguf",
        "hf://org/name@-v1",
        "hf://org/name@a/../b",
        "hf://org/name?x",
        "pvc://Models",
        "pvc://models/a b",
        "pvc://models/../x",
    ],
)
def test_what_is_no_uri_is_refused_with_the_form(text):
    """The message shows how it should read."""
    scheme = text.partition("://")[0]
    with pytest.raises(UriError, match=f"reads {scheme}://"):
        parse_uri(text)


@given(st.sampled_from(["hf", "s3", "oci", "https", "http", "pvc", "x"]), PIECES)
def test_any_text_is_a_uri_or_a_clear_refusal(scheme, rest):
    """No other exception reaches the user."""
    with contextlib.suppress(UriError):
        parse_uri(f"{scheme}://{rest}")


@pytest.mark.parametrize(
    "text", ["https://u@h/x", "https://:1/x", "https://h:x/y", "https://h:0/x", "ftp://h/x", "https://[h/x"]
)
def test_a_web_address_names_a_host_and_no_user(text):
    """The same for a file, for a folder, and for the hub's own address."""
    assert web_address(text) is None


SOUND = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,3}", fullmatch=True)
BROKEN = st.sampled_from([".", "..", "", "a b", "é", "$x", "a@b", "...", "x.gguf", "a\n"])
REVISIONS = st.one_of(st.none(), st.from_regex(r"[A-Za-z0-9._/-]{1,6}", fullmatch=True))


@st.composite
def hub_places(draw):
    """`hf://` and a revision beside it: a sound place, or one with a piece that is out of the ordinary."""
    parts = [draw(SOUND), draw(SOUND)]
    if draw(st.booleans()):
        parts += [*draw(st.lists(SOUND, max_size=2)), f"{draw(SOUND)}.gguf"]
    if draw(st.booleans()):
        parts[draw(st.integers(0, len(parts) - 1))] = draw(BROKEN)
    return "hf://" + "/".join(parts), draw(REVISIONS)


def test_the_crd_takes_the_hub_places_that_the_grammar_takes():
    """Check, fetch, webhook and CRD agree on every text, in a folder of the repository or not."""
    rules, seen = source_rules("target"), Counter()

    @settings(max_examples=600, deadline=None)
    @given(hub_places())
    def agree(place):
        uri, revision = place
        location = at_revision(uri, revision) if revision else uri
        is_taken = _parses(location) and "@" not in uri  # in a resource the revision has a field of its own
        assert is_taken == (rules.refusals(uri, revision) == []), location
        assert _opens(location) == _parses(location)
        if is_taken:
            assert Target(uri=uri, revision=revision).problems() == []
            assert source(uri, revision) == parse_uri(location)
        seen["taken" if is_taken else "refused"] += 1
        seen["in a folder"] += is_taken and uri.count("/") > 4

    agree()
    assert all(seen[outcome] > 0 for outcome in ("taken", "refused", "in a folder")), seen


PLACES = {
    "s3": st.from_regex(r"s3://[a-zA.-]{2,5}(/[a-z./%]{0,5})?", fullmatch=True),
    "oci": st.from_regex(
        r"oci://([a-z.]{1,3}|\[::1\])(:[0-9]{1,6})?/[a-zA._/-]{1,5}(:[a-z._-]{1,3})?(@sha256:(ab){31,32})?", fullmatch=True
    ),
    # Whether a port is in range only the grammar knows: webhook and operator say so.
    "https": st.from_regex(
        r"https://([a-zé.:\[\]-]{0,3}|\[::1\])(:(443)?)?/[a-z%/]{0,4}(\.gguf)?(#sha256=(Ab){31,32})?", fullmatch=True
    ),
    "pvc": st.from_regex(r"pvc://[a-zA.-]{1,4}(/[a-zA-Z0-9._/+-]{0,5})?", fullmatch=True),
}


@pytest.mark.parametrize("scheme", PLACES)
def test_the_crd_takes_what_the_grammar_takes_of_the_other_schemes(scheme):
    """A resource may hold less: no `..` anywhere, and of web files only GGUF files."""
    rules, seen = source_rules("target"), Counter()

    @settings(max_examples=400, deadline=None)
    @given(PLACES[scheme])
    def agree(uri):
        is_plain = ".." not in uri and (scheme != "https" or uri.partition("#")[0].endswith(".gguf"))
        is_taken = rules.refusals(uri) == []
        if is_taken:
            assert _parses(uri), uri
            assert Source(uri=uri).problems() == []
        elif is_plain:
            assert not _parses(uri), uri
        seen["taken" if is_taken else "refused"] += 1

    agree()
    assert seen["taken"] > 0, seen
    assert seen["refused"] > 0, seen


def _parses(text):
    try:
        parse_uri(text)
    except UriError:
        return False
    return True


def _opens(text):
    try:
        open_location(text, endpoint="https://hub")
    except SourceError:
        return False
    return True
