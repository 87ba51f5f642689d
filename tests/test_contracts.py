"""The import directions of the house, as `make check` holds them, held in the test run too."""

import subprocess
import sys
from pathlib import Path

from source_tree import ROOT


def test_import_contracts_are_kept() -> None:
    """Operator and runtime are strangers, kernels know nobody, scheduling and the operator stay free of torch."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
