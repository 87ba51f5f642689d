"""A registry's credentials and tokens: who gets them, and when they are asked for again."""

import base64
import json
from pathlib import Path

import pytest
from fetch_runner import fetch_now
from fetch_servers import Answer, RegistrySite, Site, serve

WEIGHTS = bytes(range(256)) * 64
LAYER: tuple[dict[str, object], bytes] = (
    {"mediaType": "application/vnd.cncf.model.weight.v1.raw", "annotations": {"org.cncf.model.filepath": "m.gguf"}},
    WEIGHTS,
)


def _uri(site: Site) -> str:
    return f"oci://{site.url.removeprefix('http://')}/m:v1"


def _credentials(folder: Path, site: Site) -> dict[str, str]:
    auth = base64.b64encode(b"puller:pull-password").decode()
    config = {"auths": {site.url.removeprefix("http://"): {"auth": auth}}}
    (folder / "config.json").write_text(json.dumps(config))
    return {"DOCKER_CONFIG": str(folder)}


def test_a_storage_host_that_asks_for_credentials_gets_none(tmp_path: Path) -> None:
    """Blobs are often redirected; only the registry itself may challenge."""
    with serve(Site()) as storage, serve(RegistrySite("m", [LAYER], password="pull-password")) as registry:
        elsewhere = storage.url.replace("127.0.0.1", "localhost")
        (path,) = [path for path in registry.files if "/blobs/" in path]
        registry.faults[path] = [Answer(302, b"", {"Location": f"{elsewhere}/blob"})]
        storage.faults["/blob"] = [Answer(401, b"", {"WWW-Authenticate": f'Bearer realm="{elsewhere}/token"'})]
        result = fetch_now(_uri(registry), tmp_path / "m", "--plain-http", environment=_credentials(tmp_path, registry))

    assert result.code == 3
    assert [seen.path for seen in storage.seen] == ["/blob"]
    assert all("authorization" not in seen.headers for seen in storage.seen)


@pytest.mark.parametrize(
    "challenges",
    [
        'Bearer realm="TOKEN",service="fake",scope="repository:m:pull", Basic realm="other"',
        'Basic realm="other", Bearer realm="TOKEN",service="fake"',
        'Basic, bearer realm="TOKEN", service=fake',
    ],
)
def test_of_several_challenges_the_one_for_a_token_is_taken(tmp_path: Path, challenges: str) -> None:
    """Registries that take passwords too say both; the parameters of one are not those of the other."""
    with serve(RegistrySite("m", [LAYER], password="pull-password")) as registry:
        header = {"WWW-Authenticate": challenges.replace("TOKEN", f"{registry.url}/token")}
        registry.faults["/v2/m/manifests/v1"] = [Answer(401, b"", header)]
        result = fetch_now(_uri(registry), tmp_path / "m", "--plain-http", environment=_credentials(tmp_path, registry))

    assert result.code == 0, result.error
    assert [seen.query.get("service") for seen in registry.seen if seen.path == "/token"] == ["fake"]


def test_a_token_that_expires_on_the_way_is_renewed(tmp_path: Path) -> None:
    """Tokens of registries last minutes, layers of models may take hours."""
    with serve(RegistrySite("m", [LAYER], password="pull-password")) as registry:
        (path,) = [path for path in registry.files if "/blobs/" in path]
        challenge = f'Bearer realm="{registry.url}/token",service="fake"'
        registry.faults[path] = [Answer(401, b"", {"WWW-Authenticate": challenge})]
        result = fetch_now(_uri(registry), tmp_path / "m", "--plain-http", environment=_credentials(tmp_path, registry))

    assert result.code == 0, result.error
    assert len([seen for seen in registry.seen if seen.path == "/token"]) == 2


def test_a_busy_token_service_is_asked_again(tmp_path: Path) -> None:
    """As long after as it says, as with every other server."""
    with serve(RegistrySite("m", [LAYER], password="pull-password")) as registry:
        registry.faults["/token"] = [Answer(503, b"", {"Retry-After": "7"})]
        result = fetch_now(_uri(registry), tmp_path / "m", "--plain-http", environment=_credentials(tmp_path, registry))

    assert result.code == 0, result.error
    assert result.waits_s == [7.0]


@pytest.mark.parametrize("config", ["", "[]", '{"auths": []}', '{"auths": {"HOST": {"auth": "not base64!"}}}'])
def test_a_broken_pull_secret_is_named(tmp_path: Path, config: str) -> None:
    """Exit code 2 and the file, not what is in it."""
    with serve(RegistrySite("m", [LAYER])) as registry:
        (tmp_path / "config.json").write_text(config.replace("HOST", registry.url.removeprefix("http://")))
        environment = {"DOCKER_CONFIG": str(tmp_path)}
        result = fetch_now(_uri(registry), tmp_path / "m", "--plain-http", environment=environment)

    assert result.code == 2
    assert "DOCKER_CONFIG" in result.error
    assert "not base64!" not in result.error
