"""What goes wrong between here and the source: cut connections, wrong bytes, refusals, hostile names, full disks."""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import io
import json
import random
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fetch_runner import NoWait, fetch_now, files_in
from fetch_servers import Answer, HubSite, RegistrySite, S3Site, Site, serve

from paceline_runtime.fetch.client import Attempts
from paceline_runtime.fetch.download import Download
from paceline_runtime.fetch.errors import RefusedError
from paceline_runtime.fetch.listing import RemoteFile
from paceline_runtime.fetch.manifest import BEING_REPLACED, read_manifest

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


def test_too_many_requests_waits_as_long_as_asked(tmp_path: Path) -> None:
    """Retry-After is honoured, for the listing as for the files."""
    busy = Answer(429, b"", {"Retry-After": "17"})
    with serve(HubSite("org/model", MODEL)) as hub:
        hub.faults["/api/models/org/model/revision/main"] = [busy, Answer(503)]
        hub.faults[hub.path("model.safetensors")] = [busy]
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert result.waits_s.count(17.0) == 2
    assert len(result.waits_s) == 3
    assert files_in(tmp_path) == MODEL


def test_a_server_that_stays_busy_is_given_up_with_growing_waits(tmp_path: Path) -> None:
    """As many retries as allowed, then exit code 6: worth another try later."""
    with serve(HubSite("org/model", MODEL)) as hub:
        hub.faults["/api/models/org/model/revision/main"] = [Answer(500)] * 9
        result = fetch_now("hf://org/model", tmp_path, "--max-retries", "4", environment={"HF_ENDPOINT": hub.url})

    assert result.code == 6
    assert "500" in result.error
    assert len(result.waits_s) == 4
    assert all(0.5 * 2**n <= waited <= 2**n for n, waited in enumerate(result.waits_s))


def test_a_long_file_may_fail_often_as_long_as_it_grows(tmp_path: Path) -> None:
    """Retries count failures in a row without progress: 200 GB over a bad line must arrive."""
    step = len(WEIGHTS) // 8
    with serve(HubSite("org/model", MODEL)) as hub:
        path = hub.path("model.safetensors")
        hub.faults[path] = [lambda answer: dataclasses.replace(answer, cut_after=step)] * 7
        result = fetch_now("hf://org/model", tmp_path, "--max-retries", "1", environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert len(hub.ranges(path)) == 8


@pytest.mark.parametrize("name", ["../evil.json", "/etc/evil.json", "a/../../evil.json", "a\\evil.json", "nul\0.json"])
def test_a_name_that_leads_outside_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    """Also when it is not one of the files that a model needs."""
    with serve(HubSite("org/model", MODEL | {name: b"{}"})) as hub:
        result = fetch_now("hf://org/model", tmp_path / "in", environment={"HF_ENDPOINT": hub.url})

    assert result.code == 4
    assert "evil" in result.error or "nul" in result.error
    assert files_in(tmp_path) == {}


def test_a_link_in_the_folder_does_not_lead_the_files_elsewhere(tmp_path: Path) -> None:
    """A folder that someone else prepared."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sub").symlink_to(tmp_path / "outside")
    with serve(S3Site("bucket", {"m/sub/config.json": b"{}", "m/model.gguf": b"GGUF"})) as store:
        result = fetch_now("s3://bucket/m", tmp_path / "in", "--include", "*", environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 4
    assert list((tmp_path / "outside").iterdir()) == []


def _tar(member: tarfile.TarInfo, data: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member.size = len(data) if member.isreg() else 0
        tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("../evil"),
        _member("/tmp/evil"),
        _member("evil", tarfile.SYMTYPE, "/etc"),
        _member("evil", tarfile.LNKTYPE, "../outside"),
        _member("evil", tarfile.FIFOTYPE),
        _member("models/.wh.evil"),
    ],
    ids=["parent", "absolute", "symlink", "hardlink", "fifo", "whiteout"],
)
def test_a_hostile_tar_layer_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    """Only plain files below the folder come out of an archive."""
    layers: list[tuple[dict[str, object], bytes]] = [({"mediaType": "application/x.tar"}, _tar(member))]
    with serve(RegistrySite("m", layers)) as registry:
        uri = f"oci://{registry.url.removeprefix('http://')}/m:v1"
        result = fetch_now(uri, tmp_path / "in", "--plain-http")

    assert result.code == 4
    assert "evil" in result.error
    assert [path for path in files_in(tmp_path) if not path.endswith(".partial")] == []
    manifest = read_manifest(tmp_path / "in")
    assert manifest is not None
    assert manifest.request == BEING_REPLACED


def test_a_manifest_that_does_not_have_its_digest_is_refused(tmp_path: Path) -> None:
    """The registry announces one digest and sends another manifest."""
    layers: list[tuple[dict[str, object], bytes]] = [({"mediaType": "application/x.tar"}, _tar(_member("a")))]
    with serve(RegistrySite("m", layers)) as registry:
        registry.lies_about_digest = True
        result = fetch_now(f"oci://{registry.url.removeprefix('http://')}/m:v1", tmp_path, "--plain-http")

    assert result.code == 4
    assert "digest" in result.error


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


@pytest.mark.parametrize("token", ["", "<NextContinuationToken>same</NextContinuationToken>"])
def test_a_listing_that_is_cut_off_is_refused(tmp_path: Path, token: str) -> None:
    """A store that speaks the first version of listings, or goes in circles: part of a model is none."""
    item = "<Contents><Key>m/config.json</Key><Size>2</Size></Contents>"
    page = f"<ListBucketResult><IsTruncated>true</IsTruncated>{token}{item}</ListBucketResult>".encode()
    with serve(S3Site("bucket", {"m/config.json": b"{}"})) as store:
        store.faults["/bucket"] = [Answer(200, page)] * 3
        result = fetch_now("s3://bucket/m", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 3
    assert "cut off" in result.error


def test_a_compressed_layer_with_broken_blocks_is_an_integrity_error(tmp_path: Path) -> None:
    """It has its digest, so it was published like that; no traceback is anybody's answer to it."""
    packed = bytearray(gzip.compress(_tar(_member("a.bin"), random.Random(0).randbytes(400_000))))
    packed[len(packed) // 2 :] = b"\xff" * (len(packed) - len(packed) // 2)
    layers: list[tuple[dict[str, object], bytes]] = [({"mediaType": "application/x.tar+gzip"}, bytes(packed))]
    with serve(RegistrySite("m", layers)) as registry:
        result = fetch_now(f"oci://{registry.url.removeprefix('http://')}/m:v1", tmp_path, "--plain-http")

    assert result.code == 4
    assert "broken" in result.error


def test_unpacking_replaces_a_link_and_does_not_write_through_it(tmp_path: Path) -> None:
    """Folders of other tools hold links into their stores; what a link names is not ours to overwrite."""
    outside, folder = tmp_path / "outside", tmp_path / "in"
    outside.write_bytes(b"theirs")
    folder.mkdir()
    (folder / "a.bin").symlink_to(outside)
    layers: list[tuple[dict[str, object], bytes]] = [({"mediaType": "application/x.tar"}, _tar(_member("a.bin")))]
    with serve(RegistrySite("m", layers)) as registry:
        result = fetch_now(f"oci://{registry.url.removeprefix('http://')}/m:v1", folder, "--plain-http")

    assert result.code == 0, result.error
    assert outside.read_bytes() == b"theirs"
    assert files_in(folder) == {"a.bin": b"x"}


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


def test_a_refresh_that_fails_leaves_the_old_version_whole(tmp_path: Path) -> None:
    """The pods that read it, and the next start without network, have their model."""
    with serve(HubSite("org/model", MODEL)) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        fetch_now("hf://org/model", tmp_path, environment=environment)
        hub.repo_files["config.json"] = b'{"new": 1}'
        hub.faults[hub.path("config.json")] = [Answer(404)]
        failed = fetch_now("hf://org/model", tmp_path, "--refresh", environment=environment)
        num_seen = len(hub.seen)
        again = fetch_now("hf://org/model", tmp_path, environment=environment)

    assert (failed.code, again.code) == (3, 0), failed.error + again.error
    assert len(hub.seen) == num_seen
    assert {name: files_in(tmp_path)[name] for name in MODEL} == MODEL


def test_what_an_interrupted_replacement_left_of_the_old_version_goes_with_the_next_fetch(tmp_path: Path) -> None:
    """Old shards beside a new whole file would be loaded with it."""
    old = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"1", "model-00002-of-00002.safetensors": b"2"}
    with serve(HubSite("org/model", {**old, **MODEL})) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        hub.named = list(old)
        fetch_now("hf://org/model", tmp_path, environment=environment)
        hub.named = list(MODEL)
        (tmp_path / "model.safetensors").mkdir()  # nothing can be renamed to that
        failed = fetch_now("hf://org/model", tmp_path, "--refresh", environment=environment)
        (tmp_path / "model.safetensors").rmdir()
        result = fetch_now("hf://org/model", tmp_path, environment=environment)

    assert (failed.code, result.code) == (5, 0), failed.error + result.error
    assert files_in(tmp_path) == MODEL


def test_a_disk_that_is_too_small_is_noticed_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has both numbers."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=65 << 20))
    with serve(HubSite("org/model", MODEL)) as hub:
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 5
    assert "2 MiB are still to come and 65 MiB are free" in result.error
    assert hub.ranges(hub.path("model.safetensors")) == []


def test_a_disk_that_fills_up_on_the_way_keeps_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 5, with the remedy; the next call resumes."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serve(HubSite("org/model", MODEL)) as hub, monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 5
    assert "no space left; give the volume more" in result.error
    assert _partials(tmp_path)


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


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"sha": "main", "siblings": []}', json.dumps({"sha": "a" * 40}).encode()])
def test_an_answer_that_is_no_repository_is_refused(tmp_path: Path, body: bytes) -> None:
    """A proxy's login page must not become a model."""
    with serve(Site()) as site:
        site.files["/api/models/org/model/revision/main"] = body
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": site.url})

    assert result.code == 3
    assert files_in(tmp_path) == {}


def test_a_redirect_of_a_signed_request_is_refused(tmp_path: Path) -> None:
    """The session token would go along."""
    with serve(Site()) as site:
        site.faults["/bucket"] = [Answer(307, b"", {"Location": "http://localhost:1/b"})]
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
        result = fetch_now("s3://bucket/m", tmp_path, environment=keys | {"AWS_ENDPOINT_URL": site.url})

    assert result.code == 3
    assert "AWS_REGION" in result.error
