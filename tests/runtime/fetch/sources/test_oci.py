"""A registry's artifacts on loopback: titled layers, archives, a private one."""

import base64
import gzip
import io
import json
import tarfile
from pathlib import Path

from fetch_runner import fetch_now, files_in
from fetch_servers import RegistrySite, serve

CONFIG, WEIGHTS = b'{"model_type": "qwen3"}', bytes(range(256)) * 4096


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


TITLE, TAR = "org.opencontainers.image.title", "application/vnd.oci.image.layer.v1.tar"


def test_oci_artifact_of_titled_layers_and_archives(tmp_path: Path) -> None:
    """Titled layers are files; plain and gzipped tar layers are unpacked, the later over the earlier."""
    layers: list[tuple[dict[str, object], bytes]] = [
        ({"mediaType": "application/octet-stream", "annotations": {TITLE: "config.json"}}, CONFIG),
        ({"mediaType": TAR}, _tar({"./models/model.gguf": b"old", "models/tokenizer.json": b"{}"})),
        ({"mediaType": f"{TAR}+gzip"}, gzip.compress(_tar({"models/model.gguf": WEIGHTS}))),
    ]
    with serve(RegistrySite("team/model", layers)) as registry:
        uri = f"oci://{registry.url.removeprefix('http://')}/team/model:v1"
        result = fetch_now(uri, tmp_path, "--plain-http")
        seen = len(registry.seen)
        again = fetch_now(uri, tmp_path, "--plain-http")

    assert (result.code, again.code) == (0, 0), result.error + again.error
    assert files_in(tmp_path) == {
        "config.json": CONFIG,
        "models/model.gguf": WEIGHTS,
        "models/tokenizer.json": b"{}",
    }
    assert len(registry.seen) == seen


def test_oci_layers_may_be_repeated(tmp_path: Path) -> None:
    """Builders write the same empty layer for every step that changes nothing; the last to name a file still wins."""
    empty, old, new = _tar({}), _tar({"model.gguf": b"old"}), _tar({"model.gguf": WEIGHTS})
    layers: list[tuple[dict[str, object], bytes]] = [({"mediaType": TAR}, data) for data in (empty, new, old, empty, new)]
    with serve(RegistrySite("m", layers)) as registry:
        result = fetch_now(f"oci://{registry.url.removeprefix('http://')}/m:v1", tmp_path, "--plain-http")

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"model.gguf": WEIGHTS}


def test_oci_folder_is_unpacked_whatever_its_media_type(tmp_path: Path) -> None:
    """ORAS says by an annotation that it packed a folder; the media type is the publisher's choice."""
    annotations = {TITLE: "models", "io.deis.oras.content.unpack": "true"}
    layer: dict[str, object] = {"mediaType": "application/x.weights", "annotations": annotations}
    with serve(RegistrySite("m", [(layer, gzip.compress(_tar({"models/model.gguf": WEIGHTS})))])) as registry:
        result = fetch_now(f"oci://{registry.url.removeprefix('http://')}/m:v1", tmp_path, "--plain-http")

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"models/model.gguf": WEIGHTS}


def test_oci_private_registry_with_pull_secret(tmp_path: Path) -> None:
    """The Docker config of a pull secret answers the challenge; neither password nor token is shown."""
    layer: tuple[dict[str, object], bytes] = ({"mediaType": "x/y", "annotations": {TITLE: "m.gguf"}}, WEIGHTS)
    with serve(RegistrySite("team/private", [layer], password="pull-password")) as registry:
        host = registry.url.removeprefix("http://")
        auth = base64.b64encode(b"puller:pull-password").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
        uri = f"oci://{host}/team/private@{registry.digest}"
        anonymous = fetch_now(uri, tmp_path / "m", "--plain-http")
        result = fetch_now(uri, tmp_path / "m", "--plain-http", environment={"DOCKER_CONFIG": str(tmp_path)})

    assert anonymous.code == 3
    assert result.code == 0, result.error
    assert files_in(tmp_path / "m") == {"m.gguf": WEIGHTS}
    shown = result.out + anonymous.out + anonymous.error
    assert not [secret for secret in ("pull-password", auth, RegistrySite.token) if secret in shown]
