"""Renders the chart with the helm of `KUBEBUILDER_ASSETS`.

Inputs: values as a dict. Outputs: the rendered objects, or helm's refusal. No cluster is asked, so `lookup` finds
nothing. Without helm the tests skip and say so; under CI=true they fail.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from source_tree import ROOT

CHART = ROOT / "charts" / "paceline"


class RefusedError(Exception):
    """helm refused the values; its text is the message."""


class Chart:
    """The chart under a release name and a namespace of its own."""

    def __init__(self, helm: Path) -> None:
        self._helm = helm

    def run(self, *args: str, values: dict | None = None) -> str:
        """Standard output of one helm call."""
        command = [str(self._helm), *args, *(["--values=-"] if values else [])]
        done = subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RefusedError(done.stderr)
        return done.stdout

    def render(self, values: dict | None = None, *args: str) -> list[dict]:
        """All objects of an install."""
        text = self.run("template", "release", str(CHART), "--namespace=space", *args, values=values)
        return [document for document in yaml.safe_load_all(text) if document]


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart, ready to be rendered."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    helm = Path(assets) / "helm"
    if not assets or not helm.exists():
        problem = "KUBEBUILDER_ASSETS does not name a folder with helm"
        pytest.fail(problem) if os.environ.get("CI") == "true" else pytest.skip(problem)
    return Chart(helm)
