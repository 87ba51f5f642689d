"""Fetch refuses what is hostile, incomplete or makes no sense: names, links, layers, listings, answers and requests."""

import contextlib
import gzip
import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import Answer, HubSite, RegistrySite, S3Site, Site, serve

from paceline_runtime.fetch.client import Attempts
from paceline_runtime.fetch.errors import RefusedError
from paceline_runtime.fetch.listing import RemoteFile
from paceline_runtime.fetch.transfer.download import Download
from paceline_runtime.fetch.transfer.manifest import BEING_REPLACED, read_manifest

MODEL = {"config.json": b"{}", "model.safetensors": b"weights"}


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


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://user:password@host:port"),
        ("HTTP_PROXY", "ftp://host"),
        ("NO_PROXY", "localhost,fd00::/8"),
        ("SSL_CERT_FILE", "/nowhere.pem"),
    ],
)
def test_proxies_and_certificates_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """Clusters set them for all pods; the HTTP library fails on them in four different ways."""
    monkeypatch.setenv(variable, value)
    result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": "http://127.0.0.1:1"})

    assert result.code == 2
    assert variable in result.error
    assert "password@" not in result.error


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"sha": "main", "siblings": []}', json.dumps({"sha": "a" * 40}).encode()])
def test_an_answer_that_is_no_repository_is_refused(tmp_path: Path, body: bytes) -> None:
    """A proxy's login page must not become a model."""
    with serve(Site()) as site:
        site.files["/api/models/org/model/revision/main"] = body
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": site.url})

    assert result.code == 3
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_an_object_store_says_why_it_refuses(tmp_path: Path, code: str) -> None:
    """Other credentials would not set the clock right."""
    with serve(Site()) as site:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>not for logs</Message></Error>".encode()
        site.faults["/bucket"] = [Answer(403, body)]
        result = fetch_now("s3://bucket/m", tmp_path, environment={"AWS_ENDPOINT_URL": site.url})

    assert result.code == 3
    assert f"answered 403 {code}: " in result.error
    assert "not for logs" not in result.error


def test_a_redirect_of_a_signed_request_is_refused(tmp_path: Path) -> None:
    """The session token would go along."""
    with serve(Site()) as site:
        site.faults["/bucket"] = [Answer(307, b"", {"Location": "http://localhost:1/b"})]
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
        result = fetch_now("s3://bucket/m", tmp_path, environment=keys | {"AWS_ENDPOINT_URL": site.url})

    assert result.code == 3
    assert "AWS_REGION" in result.error
