"""Everything that can happen to bytes on the way: the file is whole and verified, or the fetch says why not."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fetch_runner import NoWait, fetch_now, files_in
from fetch_servers import Answer, HubSite, S3Site, Seen, Site, serve

from paceline_runtime.fetch.client import Attempts
from paceline_runtime.fetch.errors import RefusedError
from paceline_runtime.fetch.listing import RemoteFile
from paceline_runtime.fetch.transfer.download import Download

WEIGHTS = bytes(range(256)) * 8192
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}
HALF = len(WEIGHTS) // 2


def _corrupted(answer: Answer) -> Answer:
    return dataclasses.replace(answer, body=b"X" + answer.body[1:])


def _cut(answer: Answer) -> Answer:
    return dataclasses.replace(answer, cut_after=HALF)


def _partials(folder: Path) -> list[Path]:
    return list(folder.rglob("*.partial"))


def test_a_cut_connection_goes_on_where_it_broke(tmp_path: Path) -> None:
    """One file, two requests, the second for the rest only."""
    with serve(HubSite("org/model", MODEL)) as hub:
        path = hub.path("model.safetensors")
        hub.faults[path] = [_cut]
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == MODEL
    assert hub.ranges(path) == ["", f"bytes={HALF}-"]


def test_an_interrupted_fetch_is_resumed_by_the_next_call(tmp_path: Path) -> None:
    """Nothing has its final name after the interruption; the second call asks for the rest only."""
    stop = NoWait()
    with serve(HubSite("org/model", MODEL)) as hub:
        path, environment = hub.path("model.safetensors"), {"HF_ENDPOINT": hub.url}
        hub.faults[path] = [lambda answer: dataclasses.replace(answer, cut_after=HALF, then=stop.set)]
        first = fetch_now("hf://org/model", tmp_path, environment=environment, stop=stop)
        (partial,) = [item for item in _partials(tmp_path) if item.name.startswith("model")]
        arrived = partial.stat().st_size
        named = [name for name in files_in(tmp_path) if not name.endswith(".partial")]
        second = fetch_now("hf://org/model", tmp_path, environment=environment)

    assert (first.code, second.code) == (130, 0), first.error + second.error
    assert named == []
    assert 0 < arrived <= HALF
    assert hub.ranges(path)[-1] == f"bytes={arrived}-"
    assert files_in(tmp_path) == MODEL


def test_a_server_without_ranges_starts_over(tmp_path: Path) -> None:
    """A 200 in answer to a range carries the whole file."""
    with serve(HubSite("org/model", MODEL)) as hub:
        path = hub.path("model.safetensors")
        hub.faults[path] = [_cut, Answer(200, WEIGHTS)]
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == MODEL
    assert len(hub.ranges(path)) == 2


def test_bytes_corrupted_once_are_fetched_again(tmp_path: Path) -> None:
    """A cache on the way may have been at fault."""
    with serve(HubSite("org/model", MODEL)) as hub:
        path = hub.path("model.safetensors")
        hub.faults[path] = [_corrupted]
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == MODEL
    assert hub.ranges(path) == ["", ""]


@pytest.mark.parametrize(("name", "algorithm"), [("model.safetensors", "sha256"), ("config.json", "git-sha1")])
def test_a_digest_that_never_matches_leaves_no_file(tmp_path: Path, name: str, algorithm: str) -> None:
    """Large files by their SHA-256, small ones by git's name."""
    with serve(HubSite("org/model", MODEL)) as hub:
        hub.faults[hub.path(name)] = [_corrupted] * 2
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 4
    assert name in result.error
    assert algorithm in result.error
    assert [path for path in files_in(tmp_path) if not path.endswith(".partial")] == []


def test_a_long_file_may_fail_often_as_long_as_it_grows(tmp_path: Path) -> None:
    """Retries count failures in a row without progress: 200 GB over a bad line must arrive."""
    step = len(WEIGHTS) // 8
    with serve(HubSite("org/model", MODEL)) as hub:
        path = hub.path("model.safetensors")
        hub.faults[path] = [lambda answer: dataclasses.replace(answer, cut_after=step)] * 7
        result = fetch_now("hf://org/model", tmp_path, "--max-retries", "1", environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert len(hub.ranges(path)) == 8


def test_a_file_that_changes_while_it_is_fetched_is_not_glued_together(tmp_path: Path) -> None:
    """The ETag of the rest is another one."""
    with serve(Site()) as site:
        site.files["/m.bin"], site.etags["/m.bin"] = WEIGHTS, '"one"'
        changed = Answer(200, WEIGHTS[::-1], {"ETag": '"two"'})
        site.faults["/m.bin"] = [_cut, changed]
        digest = hashlib.sha256(WEIGHTS).hexdigest()
        result = fetch_now(f"{site.url}/m.bin#sha256={digest}", tmp_path)

    assert result.code == 4
    assert "changed" in result.error
    assert "m.bin" not in files_in(tmp_path)


def test_a_probe_that_says_zero_is_not_believed(tmp_path: Path) -> None:
    """Servers answer HEAD with the length of what they send to it; the file is not empty for that."""

    class Site0(Site):
        def answer(self, seen: Seen) -> Answer:
            answer = super().answer(seen)
            return dataclasses.replace(answer, body=b"") if seen.method == "HEAD" else answer

    with serve(Site0()) as site:
        site.files |= {"/m.bin": WEIGHTS, "/empty": b""}
        for name, data in (("m.bin", WEIGHTS), ("empty", b"")):
            result = fetch_now(f"{site.url}/{name}#sha256={hashlib.sha256(data).hexdigest()}", tmp_path / name)
            assert result.code == 0, result.error
            assert files_in(tmp_path / name) == {name: data}


@pytest.mark.parametrize(("coding", "code"), [("gzip", 3), ("identity", 0), ("aws-chunked", 0), ("aws-chunked, GZIP", 3)])
def test_a_compressed_answer_does_not_become_the_file(tmp_path: Path, coding: str, code: int) -> None:
    """Nobody would know it from the file itself. Some stores keep `aws-chunked` from the upload, and send plain bytes."""
    with serve(S3Site("bucket", {"m.gguf": WEIGHTS})) as store:
        store.etags = dict.fromkeys(store.files, '"abc-2"')
        store.extra_headers = {"Content-Encoding": coding}
        result = fetch_now("s3://bucket/m.gguf", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == code, result.error
    assert ("m.gguf" in files_in(tmp_path)) == (code == 0)


def test_a_partial_without_validator_is_not_continued(tmp_path: Path) -> None:
    """Without digest and ETag nobody knows whether the rest belongs to it."""
    with serve(S3Site("bucket", {"m.gguf": WEIGHTS})) as store:
        store.etags = dict.fromkeys(store.files, "")
        stop, path = NoWait(), "/bucket/m.gguf"
        store.faults[path] = [lambda answer: dataclasses.replace(answer, cut_after=HALF, then=stop.set)]
        environment = {"AWS_ENDPOINT_URL": store.url}
        first = fetch_now("s3://bucket/m.gguf", tmp_path, environment=environment, stop=stop)
        second = fetch_now("s3://bucket/m.gguf", tmp_path, environment=environment)

    assert (first.code, second.code) == (130, 0), first.error + second.error
    assert store.ranges(path) == ["", ""]
    assert files_in(tmp_path) == {"m.gguf": WEIGHTS}


def test_another_part_than_was_asked_for_is_not_taken_for_the_beginning(tmp_path: Path) -> None:
    """With an ETag alone nothing else would tell that the parts do not belong together."""
    with serve(S3Site("bucket", {"m.gguf": WEIGHTS})) as store:
        path, size = "/bucket/m.gguf", len(WEIGHTS)
        store.etags = {path: '"abc-2"'}
        rest = {"ETag": '"abc-2"', "Content-Range": f"bytes {HALF - 8}-{size - 1}/{size}"}
        store.faults[path] = [_cut, Answer(206, WEIGHTS[HALF - 8 :], rest)]
        result = fetch_now("s3://bucket/m.gguf", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"m.gguf": WEIGHTS}
    assert store.ranges(path) == ["", f"bytes={HALF}-", ""]


def test_a_file_that_always_breaks_at_the_same_place_is_given_up(tmp_path: Path) -> None:
    """What has to start over each time makes no progress by getting there again."""
    with serve(S3Site("bucket", {"m.gguf": WEIGHTS})) as store:
        store.etags = dict.fromkeys(store.files, "")
        store.faults["/bucket/m.gguf"] = [_cut] * 12
        result = fetch_now("s3://bucket/m.gguf", tmp_path, "--max-retries", "3", environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 6, result.error
    assert len(store.ranges("/bucket/m.gguf")) == 4


def test_a_file_without_validator_is_not_continued_within_a_fetch_either(tmp_path: Path) -> None:
    """It changed between the attempts, at equal size: neither the parts of two versions nor a word about it would do."""
    with serve(S3Site("bucket", {"m.gguf": WEIGHTS})) as store:
        store.etags = dict.fromkeys(store.files, "")
        path, changed = "/bucket/m.gguf", WEIGHTS[::-1]
        store.faults[path] = [lambda answer: dataclasses.replace(answer, cut_after=HALF)]
        store.faults[path].append(lambda answer: store.files.update({path: changed}) or Answer(503))
        result = fetch_now("s3://bucket/m.gguf", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"m.gguf": changed}


def test_a_body_that_nothing_vouches_for_is_refused(tmp_path: Path) -> None:
    """Neither size nor digest nor framing: cut off, it would look just the same."""

    class Unframed:
        @contextlib.contextmanager
        def stream(self, *_: object) -> Iterator[httpx.Response]:
            yield httpx.Response(200, stream=httpx.ByteStream(b"half of it"))

        def attempts(self) -> Attempts:
            return Attempts(0, lambda _: False)

    download = Download(Unframed(), None, lambda _: None, lambda: False)
    with pytest.raises(RefusedError, match="sha256="):
        download.run(RemoteFile("m.gguf", "https://host/m.gguf"), tmp_path / "m.gguf")
