"""What every operation's folder keeps: its face picks, its implementations are called alike, launches name their arguments."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from source_tree import ROOT, nodes, package_files

from paceline_kernels import (
    causal_conv,
    gated_delta,
    grouped_conv,
    moe,
    paged_attention,
    selector,
    stream_read,
    window_attention,
)
from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.gated_delta import DeltaRows, Journal

KERNELS = ROOT / "kernels" / "paceline_kernels"
FOLDERS = sorted(path.parent for path in KERNELS.glob("*/__init__.py"))
LAUNCH_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid"}


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Functions at the top of a module, by name."""
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """Names and annotations, the choice of an implementation and of its cut left out."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    asked = [one for one in arguments if one.arg not in ("backend", "tiles")]
    return [(one.arg, ast.unparse(one.annotation)) for one in asked if one.annotation]


def is_jitted(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.") for decorator in function.decorator_list)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_face_and_implementations_take_the_same_arguments(folder: Path) -> None:
    """Under the same names and in the same order, so that whichever is picked can be called with them."""
    face = functions(folder / "__init__.py")
    others = {path.stem: functions(path) for path in folder.glob("*.py") if path.stem != "__init__"}
    picked = {name for name, made in others.items() if name != "reference" for name in made if name in face}

    assert "reference" in others
    for name, function in face.items():
        expected = parameters(function)
        implementations = {stem: parameters(made[name]) for stem, made in others.items() if name in made}
        assert {} == {stem: found for stem, found in implementations.items() if found != expected}, name
    assert picked <= others["reference"].keys(), "an operation without a reference"
    kernel = others.get("kernel", {})
    public = {name for name, made in kernel.items() if not name.startswith("_") and not is_jitted(made)}
    assert public - {"takes"} <= face.keys(), "a kernel that the face does not offer"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_references_know_no_device(folder: Path) -> None:
    """They are the oracle, the same everywhere."""
    text = (folder / "reference.py").read_text()

    assert [] == [word for word in ("cuda", "triton", "device.type", "Backend", ".kernel") if word in text]


def launches() -> Iterator[tuple[str, ast.Call]]:
    """Every `kernel[grid](...)` by the name of what is launched."""
    for path in package_files("paceline_kernels"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and isinstance(node.func.value, ast.Name):
                yield f"{path.parent.name}.{node.func.value.id}", node


def test_launches_name_every_argument_in_the_order_of_the_kernel() -> None:
    """Twenty pointers, strides and sizes in a row are told apart by nobody."""
    made = [made for path in package_files("paceline_kernels") for made in functions(path).values() if is_jitted(made)]
    wrong = []
    for name, call in launches():
        named = [keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg not in LAUNCH_OPTIONS]
        is_unpacked = any(keyword.arg is None for keyword in call.keywords)
        # A kernel that is picked first is launched by a name of its own, and may be any of them.
        meant = [jitted for jitted in made if name.endswith(f".{jitted.name}")] or made
        orders = [[one.arg for one in jitted.args.args] for jitted in meant]
        if call.args or named not in [order[: len(named)] if is_unpacked else order for order in orders]:
            wrong.append(name)

    assert len(list(launches())) >= 10
    assert [] == wrong


def test_the_runtime_calls_faces_only() -> None:
    """Never a kernel or a reference past the choice."""
    imports = [node for node in nodes("paceline_runtime") if isinstance(node, ast.ImportFrom) and node.module]
    ours = [node for node in imports if node.module.split(".")[0] == "paceline_kernels"]
    files = {path.stem for path in KERNELS.glob("*/*.py")} - {"__init__"}
    past = [ast.unparse(node) for node in ours if node.module.count(".") != 1 or files & {one.name for one in node.names}]

    assert len(ours) > 10
    assert [] == past


def test_faces_import_neither_triton_nor_fla() -> None:
    """A CPU machine need not have the one and must not have the other."""
    imports = "; ".join(f"import paceline_kernels.{folder.name}" for folder in FOLDERS)
    program = f"import sys; {imports}; sys.exit(sorted({{'triton', 'fla', 'torch._dynamo'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32])
def test_the_tensors_choose_where_nobody_does(dtype: torch.dtype) -> None:
    """Kernels on a GPU, references elsewhere."""
    assert runs_kernel(Backend.AUTO, torch.device("cuda"), dtype)
    assert not runs_kernel(Backend.AUTO, torch.device("cpu"), dtype)
    assert not runs_kernel(Backend.REFERENCE, torch.device("cuda"), dtype)
    assert runs_kernel(Backend.KERNEL, torch.device("cuda"), dtype)


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_float64_never_runs_a_kernel(backend: Backend, device: str) -> None:
    """Also where it is but one of the operands."""
    assert not runs_kernel(backend, torch.device(device), torch.float64)
    assert not runs_kernel(backend, torch.device(device), torch.float32, torch.float64)


def test_a_cpu_runs_kernels_under_the_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere asking for them is an error that says what to set."""
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert runs_kernel(Backend.KERNEL, torch.device("cpu"), torch.float32)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        runs_kernel(Backend.KERNEL, torch.device("cpu"), torch.float32)


def delta_case(x: torch.Tensor) -> tuple[DeltaRows, Journal]:
    return DeltaRows(x, x, x, x, x), Journal(x, x, x)


def verify_pages(x: torch.Tensor, backend: Backend) -> Any:
    lengths = torch.zeros(1, dtype=torch.int64)
    context = paged_attention.verify_context(lengths[None], lengths, 1, 64, x.dtype, backend=backend)
    return paged_attention.verify_attention(x, x, x, context, 1.0)


def prefill_pages(x: torch.Tensor, backend: Backend) -> Any:
    context = paged_attention.prefill_context(torch.zeros(1, dtype=torch.int64), 0, 1, x.dtype, backend=backend)
    return paged_attention.prefill_attention(x, x, x, context, 1.0)


OPERATIONS: dict[str, tuple[Any, str, str, Callable[[torch.Tensor, Backend], Any]]] = {
    "verify_conv": (
        *(causal_conv, "kernel", "verify_conv"),
        lambda x, backend: causal_conv.verify_conv(x, x, None, x, x, backend=backend),
    ),
    "verify_delta": (
        *(gated_delta, "kernel", "verify_delta"),
        lambda x, backend: gated_delta.verify_delta(x, delta_case(x)[1], None, delta_case(x)[0], backend=backend),
    ),
    "grouped_conv": (
        *(grouped_conv, "kernel", "grouped_conv"),
        lambda x, backend: grouped_conv.grouped_conv(x, x, x, backend=backend),
    ),
    "select_path": (
        *(selector, "kernel", "select_path"),
        lambda x, backend: selector.select_path(selector.Candidates(x, x, x), None, x, None, backend=backend),
    ),
    "stream_read": (*(stream_read, "kernel", "stream_read"), lambda x, backend: stream_read.stream_read(x, backend=backend)),
    "window_attention": (
        *(window_attention, "kernel", "window_attention"),
        lambda x, backend: window_attention.window_attention(x, None, x, x, 1, backend=backend),
    ),
    "verify_attention": (paged_attention, "kernel", "verify_attention", verify_pages),
    "prefill_attention": (paged_attention, "fused_prefill", "prefill_attention", prefill_pages),
}


@pytest.mark.parametrize(("face", "module", "name", "call"), OPERATIONS.values(), ids=OPERATIONS)
def test_every_face_asks_for_the_choice(face, module, name, call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own tensors' device and dtype."""
    __import__(f"{face.__name__}.{module}")
    for implementation in ("reference", module):
        monkeypatch.setattr(getattr(face, implementation), name, lambda *_, made=implementation: made)
    x, exact = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.float64)

    assert ["reference", "reference", module] == [
        call(x, backend) for backend in (Backend.AUTO, Backend.REFERENCE, Backend.KERNEL)
    ]
    assert ["reference"] * 3 == [call(exact, backend) for backend in Backend]


def test_experts_take_torchs_product_where_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no kernel of a GPU's, so dtype and sizes decide alone."""
    for implementation in ("reference", "grouped_product"):
        monkeypatch.setattr(getattr(moe, implementation), "grouped_linear", lambda *_, made=implementation: made)
    x, odd, ends = torch.zeros(1, 4), torch.zeros(1, 3), torch.zeros(2, dtype=torch.int32)

    assert "grouped_product" == moe.grouped_linear(x, torch.zeros(2, 4, 4), ends)
    assert "reference" == moe.grouped_linear(x, torch.zeros(2, 4, 4), ends, backend=Backend.REFERENCE)
    assert "reference" == moe.grouped_linear(odd, torch.zeros(2, 4, 3), ends)
    assert "reference" == moe.grouped_linear(x.double(), torch.zeros(2, 4, 4).double(), ends)
