"""A full run for each scheme against a real server on loopback: the right files, verified, and a second call that is free."""

import base64
import gzip
import hashlib
import io
import json
import ssl
import tarfile
from pathlib import Path

import pytest
import trustme
from fetch_runner import fetch_now, files_in
from fetch_servers import HubSite, RegistrySite, S3Site, Site, serve

from paceline_runtime.fetch.sources.sigv4 import Credentials

CONFIG, WEIGHTS = b'{"model_type": "qwen3"}', bytes(range(256)) * 4096
MODEL = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "added_tokens.json": b"",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "additional_chat_templates/tool use.jinja": b"{{ tools }}",
}
CLUTTER = {"README.md": b"hello", "original/consolidated.00.pth": b"pickle", "pytorch_model.bin": b"pickle"}


def test_hub_model_arrives_whole_and_the_second_call_needs_no_network(tmp_path: Path) -> None:
    """Config, tokenizer, templates and safetensors; no pickles, no prose; then nothing more."""
    with serve(HubSite("org/model", MODEL | CLUTTER)) as hub:
        first = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})
    second = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": "http://127.0.0.1:1"})

    assert (first.code, second.code) == (0, 0), first.error + second.error
    assert files_in(tmp_path) == MODEL
    assert '"event": "complete"' in second.out
    manifest = json.loads((tmp_path / ".paceline-fetch.json").read_text())
    assert manifest["revision"] == HubSite.commit
    assert {entry["path"]: entry["size_bytes"] for entry in manifest["files"]} == {
        name: len(data) for name, data in MODEL.items()
    }


def test_a_complete_folder_may_be_read_only(tmp_path: Path) -> None:
    """The second call writes nothing, not even its lock."""
    with serve(HubSite("org/model", MODEL)) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        fetch_now("hf://org/model", tmp_path, environment=environment)
        lock = tmp_path / ".paceline-fetch.lock"
        lock.unlink()
        lock.mkdir()
        again = fetch_now("hf://org/model", tmp_path, environment=environment)
        (tmp_path / "config.json").unlink()
        incomplete = fetch_now("hf://org/model", tmp_path, environment=environment)

    assert again.code == 0, again.error
    assert incomplete.code == 5


def test_hub_token_opens_a_private_repository_and_stays_with_the_hub(tmp_path: Path) -> None:
    """The token reaches the hub, not the storage host that it redirects to, and no output."""
    token = "hf_secret-of-the-test"
    with serve(Site()) as storage, serve(HubSite("org/gated", MODEL, token)) as hub:
        # Another host name, so that it is another origin.
        hub.storage = storage.url.replace("127.0.0.1", "localhost")
        storage.files = {f"/{name}": data for name, data in MODEL.items()}
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token}
        refused = fetch_now("hf://org/gated", tmp_path, environment={"HF_ENDPOINT": hub.url})
        result = fetch_now("hf://org/gated@main", tmp_path, environment=environment)

    assert refused.code == 3
    assert "HF_TOKEN" in refused.error
    assert result.code == 0, result.error
    assert files_in(tmp_path) == MODEL
    assert len(storage.seen) == 2
    assert all("authorization" not in seen.headers for seen in storage.seen)
    assert token not in result.out + result.error + (tmp_path / ".paceline-fetch.json").read_text()
    assert "not-for-logs" not in result.out


def test_hub_gguf_file_is_fetched_alone(tmp_path: Path) -> None:
    """`hf://org/name/file.gguf` names one of several quantizations; without a name they are listed."""
    models = {"a-Q4_K_M.gguf": b"GGUF1", "a-Q8_0.gguf": b"GGUF2"}
    with serve(HubSite("org/gguf", models)) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        unclear = fetch_now("hf://org/gguf", tmp_path, environment=environment)
        result = fetch_now("hf://org/gguf/a-Q8_0.gguf", tmp_path, environment=environment)

    assert unclear.code == 2
    assert "a-Q4_K_M.gguf, a-Q8_0.gguf" in unclear.error
    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"a-Q8_0.gguf": b"GGUF2"}


def test_the_first_shard_of_a_split_gguf_stands_for_all(tmp_path: Path) -> None:
    """As readers of split GGUF files have it."""
    shards = {f"big-Q8_0-0000{n}-of-00002.gguf": bytes([n]) for n in (1, 2)}
    with serve(HubSite("org/gguf", shards | {"big-Q4_0.gguf": b"GGUF"})) as hub:
        uri = "hf://org/gguf/big-Q8_0-00001-of-00002.gguf"
        result = fetch_now(uri, tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == shards


def test_a_gguf_in_a_folder_of_the_repository_comes_under_its_own_name(tmp_path: Path) -> None:
    """All its shards, and no other folder's file of that name: so the folder that was fetched to is one that `serve` loads."""
    shards = {f"m-0000{n}-of-00002.gguf": bytes([n]) for n in (1, 2)}
    models = {f"{folder}/{name}": folder.encode() + data for folder in ("q4", "q8/x") for name, data in shards.items()}
    with serve(HubSite("org/gguf", models)) as hub:
        uri = "hf://org/gguf/q8/x/m-00001-of-00002.gguf"
        result = fetch_now(uri, tmp_path, environment={"HF_ENDPOINT": hub.url})
        again = fetch_now(uri, tmp_path, "--refresh", environment={"HF_ENDPOINT": hub.url})

    assert (result.code, again.code) == (0, 0), result.error + again.error
    assert files_in(tmp_path) == {name: b"q8/x" + data for name, data in shards.items()}


def test_refresh_replaces_what_changed_and_keeps_the_rest(tmp_path: Path) -> None:
    """A shard that is gone at the source does not stay beside the new ones."""
    with serve(HubSite("org/model", MODEL)) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        fetch_now("hf://org/model", tmp_path, environment=environment)
        hub.repo_files["config.json"] = b'{"model_type": "llama"}'
        hub.named.remove("tokenizer.json")
        result = fetch_now("hf://org/model", tmp_path, "--refresh", environment=environment)

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {name: data for name, data in MODEL.items() if name != "tokenizer.json"} | {
        "config.json": b'{"model_type": "llama"}'
    }
    assert len(hub.ranges(hub.path("model-00001-of-00002.safetensors"))) == 1


def test_a_folder_with_another_model_is_not_overwritten(tmp_path: Path) -> None:
    """Pods may be reading it."""
    with serve(HubSite("org/model", MODEL)) as hub:
        fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})
        result = fetch_now("hf://org/other", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 2
    assert "holds hf://org/model" in result.error
    assert files_in(tmp_path) == MODEL


@pytest.mark.parametrize("session_token", [None, "session/token=="])
def test_s3_prefix_is_listed_page_by_page_and_every_request_signed(tmp_path: Path, session_token: str | None) -> None:
    """The fake store computes each signature anew, keys with spaces and signs among them."""
    credentials = Credentials("AKID", "secret/of+the=test", session_token)
    objects = {f"models/m/{name}": data for name, data in (MODEL | CLUTTER).items()}
    neighbour = {"models/m-other/config.json": b"not this"}
    with serve(S3Site("weights", objects | neighbour, credentials)) as store:
        environment = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_SESSION_TOKEN": session_token or "",
        }
        result = fetch_now("s3://weights/models/m", tmp_path, environment=environment)
        wrong = fetch_now("s3://weights/models/m", tmp_path / "w", environment=environment | {"AWS_SECRET_ACCESS_KEY": "x"})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == MODEL
    assert len([seen for seen in store.seen if "continuation-token" in seen.query]) >= 4
    assert wrong.code == 3
    assert credentials.secret_access_key not in result.out + wrong.out + wrong.error


def test_s3_public_bucket_and_single_object_need_no_keys(tmp_path: Path) -> None:
    """Without keys nothing is signed; a prefix that names an object is that object."""
    with serve(S3Site("public", {"a/model.gguf": WEIGHTS, "a/model.gguf.md": b"prose"})) as store:
        result = fetch_now("s3://public/a/model.gguf", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"model.gguf": WEIGHTS}


def test_a_fetched_folder_that_was_uploaded_whole_can_be_fetched_again(tmp_path: Path) -> None:
    """`aws s3 sync` and `hf upload` take the bookkeeping along; it is no part of the model."""
    files = MODEL | {".paceline-fetch.json": b"{}", ".paceline-fetch.lock": b"", "x.gguf.0123456789ab.partial": b"x"}
    with serve(S3Site("public", {f"m/{name}": data for name, data in files.items()})) as store:
        from_store = fetch_now("s3://public/m", tmp_path / "s3", environment={"AWS_ENDPOINT_URL": store.url})
    with serve(HubSite("org/model", files)) as hub:
        from_hub = fetch_now("hf://org/model", tmp_path / "hf", environment={"HF_ENDPOINT": hub.url})

    assert (from_store.code, from_hub.code) == (0, 0), from_store.error + from_hub.error
    assert files_in(tmp_path / "s3") == files_in(tmp_path / "hf") == MODEL


@pytest.mark.parametrize("etag", [None, '"0123-2"'], ids=["md5", "of parts"])
def test_s3_listings_may_leave_the_quotes_of_etags_out(tmp_path: Path, etag: str | None) -> None:
    """The same tag in a header has them; it is no other version."""
    with serve(S3Site("public", {"a/model.gguf": WEIGHTS})) as store:
        store.lists_quotes = False
        store.etags |= {"/public/a/model.gguf": etag} if etag else {}
        result = fetch_now("s3://public/a", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error


@pytest.mark.parametrize("namespace", ["", "xmlns='urn:fake:s3'", 'xmlns:x="urn:x" xmlns="urn:fake:s3"'])
def test_s3_listings_may_write_their_namespace_as_xml_permits(tmp_path: Path, namespace: str) -> None:
    """Google's store writes it in single quotes."""
    with serve(S3Site("public", {"a/config.json": CONFIG, "a/model.gguf": WEIGHTS})) as store:
        store.namespace = namespace
        result = fetch_now("s3://public/a", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"config.json": CONFIG, "model.gguf": WEIGHTS}


@pytest.mark.parametrize(
    "names", [("AWS_ENDPOINT_URL_S3", "AWS_REGION"), ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")], ids=["preferred", "other"]
)
def test_s3_address_and_region_have_two_names_each(tmp_path: Path, names: tuple[str, str]) -> None:
    """As AWS's own tools read them: the operator's address stands back where a source's Secret has one."""
    credentials = Credentials("AKID", "secret")
    with serve(S3Site("weights", {"m/model.gguf": WEIGHTS}, credentials)) as store:
        store.region = "eu-central-7"
        other = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_DEFAULT_REGION": "elsewhere"}
        named = dict(zip(names, (store.url, store.region), strict=True))
        keys = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret"}
        result = fetch_now("s3://weights/m", tmp_path, environment={**other, **keys, **named})

    assert result.code == 0, result.error


def test_s3_objects_under_a_managed_key_are_verified_by_size_only(tmp_path: Path) -> None:
    """Their ETag looks like an MD5 and is none."""
    with serve(S3Site("kms", {"m/config.json": CONFIG, "m/model.gguf": WEIGHTS})) as store:
        store.etags = dict.fromkeys(store.files, f'"{"ab" * 16}"')
        store.extra_headers = {"x-amz-server-side-encryption": "aws:kms"}
        result = fetch_now("s3://kms/m", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"config.json": CONFIG, "model.gguf": WEIGHTS}


def test_https_file_is_fetched_over_real_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private authority is trusted through SSL_CERT_FILE, an unknown one is not."""
    authority, site = trustme.CA(), Site()
    site.files["/models/tiny.gguf"] = WEIGHTS
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def tls(server: object) -> None:
        server.socket = context.wrap_socket(server.socket, server_side=True)  # type: ignore[attr-defined]

    digest = hashlib.sha256(WEIGHTS).hexdigest()
    with serve(site, wrap=tls, scheme="https"):
        unknown = fetch_now(f"{site.url}/models/tiny.gguf", tmp_path / "u", "--max-retries", "0")
        with authority.cert_pem.tempfile() as bundle:
            monkeypatch.setenv("SSL_CERT_FILE", bundle)
            result = fetch_now(f"{site.url}/models/tiny.gguf#sha256={digest}", tmp_path / "k")

    assert unknown.code == 6
    assert "CERTIFICATE_VERIFY_FAILED" in unknown.error
    assert result.code == 0, result.error
    assert files_in(tmp_path / "k") == {"tiny.gguf": WEIGHTS}


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


def test_mounted_sources_pass_through(tmp_path: Path) -> None:
    """A claim or a path is there by its mount: nothing is copied; a path that is not there is an error."""
    claim = fetch_now("pvc://claim/model", tmp_path / "d")
    path = fetch_now(str(tmp_path), tmp_path / "d")
    missing = fetch_now(str(tmp_path / "nowhere"), tmp_path / "d")

    assert (claim.code, path.code, missing.code) == (0, 0, 3)
    assert not (tmp_path / "d").exists()
