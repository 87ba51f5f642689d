"""The manifest: what was written is read, and nothing else counts."""

from pathlib import Path

from paceline_runtime.fetch.transfer.manifest import FetchedFile, Manifest, read_manifest, write_manifest


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
