"""Where the cluster demo plays: a cluster that ends with its block, commands typed in front of an audience, timed steps.

Called by `demo_cluster`, which has the story. It knows how to start, show and clean up, and no resource by name.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from processcluster import Cluster, ClusterError
from source_tree import ROOT

ASSETS = "KUBEBUILDER_ASSETS"
NODE = "node-1"
WIDTH = 118
COMMAND_LIMIT_S = 180


def say(text: str) -> None:
    """To standard output, at once."""
    print(text, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """A headline before, the time it took after; a failed step shows no time."""
    say(f"\n=== {title}")
    started_s = time.monotonic()
    yield
    say(f"    ({time.monotonic() - started_s:.1f} s)")


@dataclass(frozen=True)
class Terminal:
    """Types commands as a user of the cluster would, in the checkout's folder."""

    cluster: Cluster

    def type(self, command: str) -> None:
        """Show a command, run it, show its output. Raises ClusterError with that output when it fails."""
        say("  $ " + " \\\n      ".join(textwrap.wrap(command, WIDTH, break_on_hyphens=False, break_long_words=False)))
        # The cluster's own kubectl and helm come first.
        path = os.pathsep.join([os.environ[ASSETS], self.cluster.environment["PATH"]])
        done = subprocess.run(
            shlex.split(command),
            cwd=ROOT,
            env=self.cluster.environment | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
        # helm tells of every symbolic link in a chart, here of the CRDs.
        output = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("level=INFO")).strip()
        if done.returncode:
            raise ClusterError(f"`{command}` ended with {done.returncode}: {output}")
        say(textwrap.indent(f"{output}\n", "  "))


@contextlib.contextmanager
def running(questions: Sequence[str]) -> Iterator[Terminal]:
    """A cluster with one node, whose last process is gone when the block is left, however it is left.

    `questions` are the commands that a person would look at first when a step failed, while there is something to see.
    """
    with scratch_folder() as folder, contextlib.ExitStack() as endings:
        with step("Start etcd, API server, controllers, scheduler and one node, all as processes"):
            cluster = Cluster.start(folder)
            endings.callback(stop, cluster)
            cluster.add_node(NODE)
            terminal = Terminal(cluster)
            terminal.type("kubectl get nodes")
        try:
            yield terminal
        except Exception:
            diagnose(terminal, questions)
            raise


def stop(cluster: Cluster) -> None:
    """Returns when the last process is gone."""
    with step("Stop every process of the cluster"):
        cluster.stop()


def diagnose(terminal: Terminal, questions: Sequence[str]) -> None:
    """The state of the cluster's parts, and the answers to those questions that it can still answer."""
    say("\n=== That failed; this is how the cluster was")
    with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
        for part, state in terminal.cluster.status().items():
            say(f"  {part:20} {state}")
        for question in questions:
            terminal.type(question)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the cluster; gone afterwards, except for the logs when a step failed."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-demo-"))
    kept = None
    try:
        yield folder
    except Exception:
        kept = "log"
        raise
    finally:
        remove(folder, kept)


def remove(folder: Path, kept: str | None) -> None:
    """Delete a folder, or all but one entry of it."""
    if kept is None or not (folder / kept).exists():
        shutil.rmtree(folder)
        return
    for place in folder.iterdir():
        if place.name != kept:
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    say(f"\nlogs of the cluster's parts are kept in {folder / kept}")
