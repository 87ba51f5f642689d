"""Image names and the commands of this checkout that stand for them.

A container gets a root of its own with /usr of this machine; an image adds binds, environment, a user and an entry
point to it. Host side and kubelet share the table through one JSON file, so tests may add images while pods run.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
# Not the checkout's own path: an emptyDir at /tmp would hide a checkout below /tmp.
CODE, VENV = "/opt/paceline", "/opt/venv"


@dataclass(frozen=True)
class Image:
    """What a container image is here: `entrypoint` argv, read-only `binds` (host path -> container path), and so on."""

    entrypoint: tuple[str, ...] = ()
    binds: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    user: int = 0
    working_dir: str = "/"


def python_image(entrypoint: tuple[str, ...] = ("python",)) -> Image:
    """This Python with its packages and nothing of ours."""
    binds, bin_folder = {}, f"{sys.base_prefix}/bin"
    # A virtual environment's python is a link into the base installation, which is found by its own path.
    if not sys.base_prefix.startswith("/usr"):
        binds[sys.base_prefix] = sys.base_prefix
    if sys.prefix != sys.base_prefix:
        binds[sys.prefix] = VENV
        bin_folder = f"{VENV}/bin"
    env = {"PATH": f"{bin_folder}:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return Image(entrypoint=entrypoint, binds=binds, env=env, user=10001)


def checkout_images(scripts: Path) -> dict[str, Image]:
    """The images of this checkout; `scripts` is a folder for the `paceline` command, made here.

    `paceline/operator:test` starts the operator, `paceline/runtime:test` the command line, `python:test` an
    interpreter without our code, and `busybox:test` a shell.
    """
    base = python_image()
    binds = base.binds | {str(scripts): f"{CODE}/bin"}
    roots = [CHECKOUT / name for name in ("operator", "runtime", "kernels", "charts", "crds", "examples")]
    binds |= {str(root): f"{CODE}/{root.name}" for root in roots if root.is_dir()}
    env = base.env | {
        "PATH": f"{CODE}/bin:{base.env['PATH']}",
        "PYTHONPATH": os.pathsep.join(f"{CODE}/{name}" for name in ("operator", "runtime", "kernels")),
    }
    _write_command(scripts / "paceline", "from paceline_runtime.cli import main; import sys; sys.exit(main())")

    def image(*entrypoint: str) -> Image:
        return Image(entrypoint, binds, env, user=10001, working_dir=CODE)

    return {
        "paceline/operator:test": image("python", "-m", "paceline_operator"),
        "paceline/runtime:test": image("paceline"),
        "python:test": base,
        "busybox:test": Image(env={"PATH": "/usr/bin:/bin"}),
    }


def _write_command(path: Path, program: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexec python -c '{program}' \"$@\"\n")
    path.chmod(0o755)


def write_images(path: Path, images: dict[str, Image]) -> None:
    """Replaces the table in one step, since kubelets read it at any time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({name: asdict(image) for name, image in images.items()}, indent=1))
    fresh.replace(path)


def read_images(path: Path) -> dict[str, Image]:
    table = json.loads(path.read_text())
    return {name: Image(**(row | {"entrypoint": tuple(row["entrypoint"])})) for name, row in table.items()}
