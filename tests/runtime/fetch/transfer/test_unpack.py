"""Archives: only plain files below the folder come out of them."""

import gzip
import io
import random
import tarfile
from pathlib import Path

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import RegistrySite, serve

from paceline_runtime.fetch.transfer.manifest import BEING_REPLACED, read_manifest


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
