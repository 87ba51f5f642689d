"""What `make demo-cluster` decides by itself: where binaries come from, what a failure looks like, what is left behind.

The way from `helm install` to tokens is held by test_operator_e2e; nothing here starts a cluster.
"""

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from processcluster import ClusterError
from source_tree import ROOT

TRUE, UNKNOWN = ("True", "Fine", "all is well"), ("Unknown", "Waiting", "not known yet")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo as a module; its neighbour is imported by its bare name, as when it runs as a script."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    return importlib.import_module("demo_cluster")


@pytest.fixture
def stage(demo: ModuleType) -> ModuleType:
    return importlib.import_module("cluster_stage")


@pytest.fixture
def program(tmp_path: Path):
    """Makes an executable shell script out of its lines."""

    def make(text: str) -> Path:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return make


@dataclass
class FakeCluster:
    """As much of a cluster as typing commands and stopping takes."""

    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin", "KUBECONFIG": "/nowhere/config"})
    is_stopped: bool = False

    def add_node(self, name: str) -> None:
        pass

    def status(self) -> dict[str, str]:
        return {"etcd": "running, pid 7"}

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def fake_cluster(stage: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCluster:
    """What `running` gets instead of a cluster; a kubectl that tells its arguments lies in the binaries' folder."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$KUBECONFIG: $@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv(stage.ASSETS, str(tmp_path))
    monkeypatch.setattr(stage.tempfile, "tempdir", str(tmp_path))
    cluster = FakeCluster()

    def start(folder: Path) -> FakeCluster:
        (folder / "log").mkdir()
        (folder / "claims").mkdir()
        (folder / "kubeconfig").write_text("{}")
        return cluster

    monkeypatch.setattr(stage.Cluster, "start", start)
    return cluster


def left_behind(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("paceline-demo-*/*"))


def test_the_environment_names_the_binaries_first(demo: ModuleType, program):
    """The installer is not even asked."""
    assert demo.find_assets({"KUBEBUILDER_ASSETS": "/assets"}, program("exit 1")) == "/assets"


def test_the_installer_is_asked_for_the_binaries(demo: ModuleType, program):
    """Its standard output is the folder, also when the variable is set to nothing."""
    assert demo.find_assets({"KUBEBUILDER_ASSETS": ""}, program("echo /from/installer")) == "/from/installer"


def test_an_installer_that_fails_is_quoted(demo: ModuleType, program):
    """With its own words and the way around it."""
    with pytest.raises(ClusterError, match="set KUBEBUILDER_ASSETS instead: no space left"):
        demo.find_assets({}, program("echo no space left >&2; exit 3"))


def test_without_binaries_one_line_says_where_they_come_from(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """And the exit status is 1, before anything has started."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(demo, "INSTALLER", tmp_path / "absent")
    monkeypatch.setattr(demo, "running", lambda _: pytest.fail("started without binaries"))
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    assert demo.main([]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "KUBEBUILDER_ASSETS is not set" in output.err
    assert "setup-envtest" in output.err


def test_conditions_are_told_once_and_in_order(demo: ModuleType):
    """Whatever else is true, and in whatever order the resource lists them."""
    conditions = {"Ready": TRUE, "Scheduled": TRUE, "Compatible": TRUE, "Available": UNKNOWN, "Accepted": TRUE}
    assert demo.newly_true(conditions, ["Accepted"]) == ["Compatible", "Ready"]
    assert demo.newly_true({}, []) == []


@pytest.mark.parametrize("type_", ["Accepted", "Compatible"])
def test_a_refused_resource_ends_the_demo_with_its_message(demo: ModuleType, type_: str):
    """Rather than with a timeout."""
    with pytest.raises(ClusterError, match=f"{type_} is False, Incompatible: the draft is for another model"):
        demo.newly_true({type_: ("False", "Incompatible", "the draft is for another model")}, [])


def test_a_command_is_shown_and_run_against_the_cluster(
    stage: ModuleType, fake_cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
):
    """Found in the binaries' folder before PATH, with the cluster's kubeconfig."""
    stage.Terminal(fake_cluster).type("kubectl get specm -o 'wide'")
    assert capsys.readouterr().out == "  $ kubectl get specm -o 'wide'\n  /nowhere/config: get specm -o wide\n\n"


def test_a_command_that_fails_is_quoted_with_its_output(stage: ModuleType, fake_cluster: FakeCluster):
    """Standard error included."""
    with pytest.raises(ClusterError, match=r"ended with 2: .*no such file"):
        stage.Terminal(fake_cluster).type("sh -c 'echo no such file >&2; exit 2'")


def test_after_the_demo_nothing_is_left(stage: ModuleType, fake_cluster: FakeCluster, tmp_path: Path):
    """Neither a process nor a folder."""
    with stage.running([]):
        assert left_behind(tmp_path) == ["claims", "kubeconfig", "log"]
    assert fake_cluster.is_stopped
    assert list(tmp_path.glob("paceline-demo-*")) == []


def test_after_an_interrupt_nothing_is_left(stage: ModuleType, fake_cluster: FakeCluster, tmp_path: Path):
    """Ctrl-C is no failure that anyone would look into."""
    with pytest.raises(KeyboardInterrupt), stage.running([]):
        raise KeyboardInterrupt
    assert fake_cluster.is_stopped
    assert list(tmp_path.glob("paceline-demo-*")) == []


def test_a_failure_shows_the_cluster_and_keeps_the_logs(
    stage: ModuleType, fake_cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The questions are answered while the cluster still runs; only then it stops."""
    with pytest.raises(ClusterError, match="no pods"), stage.running(["kubectl get pods -A"]):
        raise ClusterError("no pods")
    told = capsys.readouterr().out
    assert told.index("running, pid 7") < told.index("config: get pods -A") < told.index("Stop every process")
    assert fake_cluster.is_stopped
    assert left_behind(tmp_path) == ["log"]


def test_a_node_that_does_not_come_up_stops_the_cluster(
    stage: ModuleType, fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """The cluster is stopped from its first moment on."""

    def fail(name: str) -> None:
        raise ClusterError(f"no {name}")

    monkeypatch.setattr(fake_cluster, "add_node", fail)
    with pytest.raises(ClusterError, match="no node-1"), stage.running([]):
        pytest.fail("went on without a node")
    assert fake_cluster.is_stopped


def test_the_example_that_is_applied_exists_and_names_the_model(demo: ModuleType):
    """The demo's model is the one of the example's resource."""
    assert f"name: {demo.MODEL}\n" in (ROOT / demo.EXAMPLE).read_text()
