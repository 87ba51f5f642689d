"""Names that come from elsewhere never lead outside of the folder."""

from pathlib import Path, PurePosixPath

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import HubSite, S3Site, serve
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.fetch.errors import IntegrityError
from paceline_runtime.fetch.paths import safe_path

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


PIECES = st.text(alphabet="ab./\\:@#?%- \0é~[]0", max_size=12)


@given(PIECES)
def test_a_safe_path_never_leaves_its_folder(name: str) -> None:
    """Accepted names resolve below the folder and to themselves."""
    try:
        path = safe_path(name)
    except IntegrityError:
        return
    root = PurePosixPath("/models/m")
    assert ".." not in PurePosixPath(path).parts
    assert str((root / path).relative_to(root)) == name


@pytest.mark.parametrize("name", ["x.partial", ".paceline-fetch.json", "a" * 201, "", "a//b", "./a", "line\nbreak"])
def test_names_of_our_own_and_unprintable_ones_are_refused(name: str) -> None:
    """They would break bookkeeping or terminals."""
    with pytest.raises(IntegrityError):
        safe_path(name)
