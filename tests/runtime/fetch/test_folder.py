"""A folder that holds a model already, and places that are there already."""

from pathlib import Path

from fetch_runner import fetch_now, files_in
from fetch_servers import HubSite, serve

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


def test_mounted_sources_pass_through(tmp_path: Path) -> None:
    """A claim or a path is there by its mount: nothing is copied; a path that is not there is an error."""
    claim = fetch_now("pvc://claim/model", tmp_path / "d")
    path = fetch_now(str(tmp_path), tmp_path / "d")
    missing = fetch_now(str(tmp_path / "nowhere"), tmp_path / "d")

    assert (claim.code, path.code, missing.code) == (0, 0, 3)
    assert not (tmp_path / "d").exists()
