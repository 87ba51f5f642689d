"""A model hub on loopback: the right files, verified, and a second call that is free."""

import json
from pathlib import Path

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import HubSite, Site, serve


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"sha": "main", "siblings": []}', json.dumps({"sha": "a" * 40}).encode()])
def test_an_answer_that_is_no_repository_is_refused(tmp_path: Path, body: bytes) -> None:
    """A proxy's login page must not become a model."""
    with serve(Site()) as site:
        site.files["/api/models/org/model/revision/main"] = body
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": site.url})

    assert result.code == 3
    assert files_in(tmp_path) == {}


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
