"""Indexes, annotations and layers of a registry, and what cannot be trusted of them."""

import dataclasses
import io
import json
import platform
import tarfile
from pathlib import Path

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import RegistrySite, Site, serve


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


def test_a_manifest_that_does_not_have_its_digest_is_refused(tmp_path: Path) -> None:
    """The registry announces one digest and sends another manifest."""
    layers: list[tuple[dict[str, object], bytes]] = [({"mediaType": "application/x.tar"}, _tar(_member("a")))]
    with serve(RegistrySite("m", layers)) as registry:
        registry.lies_about_digest = True
        result = fetch_now(f"oci://{registry.url.removeprefix('http://')}/m:v1", tmp_path, "--plain-http")

    assert result.code == 4
    assert "digest" in result.error


WEIGHTS = bytes(range(256)) * 64
LAYER: tuple[dict[str, object], bytes] = (
    {"mediaType": "application/vnd.cncf.model.weight.v1.raw", "annotations": {"org.cncf.model.filepath": "m.gguf"}},
    WEIGHTS,
)
OTHER = {"x86_64": "arm64", "aarch64": "amd64"}


def _uri(site: Site) -> str:
    return f"oci://{site.url.removeprefix('http://')}/m:v1"


def _put_behind_index(registry: RegistrySite, *platforms: object) -> None:
    """The tag names an index; every entry but the last points to nothing."""
    registry.files[f"/v2/m/manifests/{registry.digest}"] = registry.manifest
    digests = [f"sha256:{n:064}" for n in range(len(platforms) - 1)] + [registry.digest]
    entries = [{"digest": digest, "platform": where} for digest, where in zip(digests, platforms, strict=True)]
    registry.manifest = json.dumps({"manifests": entries}).encode()


def test_an_index_leads_to_this_machines_manifest(tmp_path: Path) -> None:
    """Other platforms and attestations are passed by."""
    here = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    other, unknown = {"os": "linux", "architecture": OTHER[platform.machine()]}, {"os": "unknown", "architecture": "unknown"}
    with serve(RegistrySite("m", [LAYER])) as registry:
        _put_behind_index(registry, other, unknown, {"os": "linux", "architecture": here})
        result = fetch_now(_uri(registry), tmp_path, "--plain-http")

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"m.gguf": WEIGHTS}


def test_an_index_without_this_machine_is_refused(tmp_path: Path) -> None:
    """The message names the platform that was looked for."""
    with serve(RegistrySite("m", [LAYER])) as registry:
        _put_behind_index(registry, {"os": "linux", "architecture": OTHER[platform.machine()]})
        result = fetch_now(_uri(registry), tmp_path, "--plain-http")

    assert result.code == 3
    assert "no manifest for linux/" in result.error


@pytest.mark.parametrize("platforms", [["linux/amd64"], [7, True]])
def test_platforms_that_are_no_objects_match_nothing(tmp_path: Path, platforms: list[object]) -> None:
    """Whatever else stands in their place."""
    with serve(RegistrySite("m", [LAYER])) as registry:
        _put_behind_index(registry, *platforms)
        result = fetch_now(_uri(registry), tmp_path, "--plain-http")

    assert result.code == 3
    assert "no manifest for linux/" in result.error


@pytest.mark.parametrize("annotations", ["model.gguf", ["title"], 7])
def test_annotations_that_are_no_object_name_nothing(tmp_path: Path, annotations: object) -> None:
    """A layer without a name is refused as such."""
    with serve(
        RegistrySite("m", [({"mediaType": "application/octet-stream", "annotations": annotations}, b"GGUF")])
    ) as registry:
        result = fetch_now(_uri(registry), tmp_path, "--plain-http")

    assert result.code == 3
    assert "has neither a title annotation nor a tar media type" in result.error


def test_a_blob_that_does_not_have_its_digest_is_refused(tmp_path: Path) -> None:
    """Twice wrong is wrong."""
    with serve(RegistrySite("m", [LAYER])) as registry:
        (path,) = [path for path in registry.files if "/blobs/" in path]
        registry.faults[path] = [lambda answer: dataclasses.replace(answer, body=b"X" + answer.body[1:])] * 2
        result = fetch_now(_uri(registry), tmp_path, "--plain-http")

    assert result.code == 4
    assert "sha256" in result.error
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize(
    "layer",
    [
        {"mediaType": "application/octet-stream"},
        {"mediaType": "a/b", "annotations": {"org.opencontainers.image.title": "../evil"}},
        {"mediaType": "a/b", "annotations": {"org.opencontainers.image.title": "x"}, "digest": "md5:00"},
        {"mediaType": "a/b", "annotations": {"org.opencontainers.image.title": "x"}, "size": -1},
        {"mediaType": "application/vnd.cncf.model.weight.v1.tar+zstd", "annotations": {"org.cncf.model.filepath": "m.gguf"}},
    ],
    ids=["nameless", "outside", "weak digest", "negative size", "packed with zstd"],
)
def test_a_layer_that_cannot_be_trusted_is_refused(tmp_path: Path, layer: dict[str, object]) -> None:
    """Before any blob is asked for."""
    with serve(RegistrySite("m", [LAYER])) as registry:
        good = json.loads(registry.manifest)["layers"][0]
        registry.manifest = json.dumps({"layers": [{"digest": good["digest"], "size": 1, **layer}]}).encode()
        result = fetch_now(_uri(registry), tmp_path, "--plain-http")

    assert result.code in (3, 4)
    assert not [seen for seen in registry.seen if "/blobs/" in seen.path]
    assert files_in(tmp_path) == {}
