"""What a server takes in memory, beside what it must take: weights, planned K/V, torch itself.

`peer` calls it. The figure is the proportional set size of the server and its engine process after a first answer: pages that
both map count once. Linux only.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import build_engine
from paceline_runtime.loaders import read_checked

_ALLOWANCE_BYTES = 200 << 20
_READY_TIMEOUT_S = 180.0
_MAX_MODEL_LEN = 2048
_PROBE = "import torch; print(open('/proc/self/smaps_rollup').read())"


@dataclass(frozen=True)
class ServingMemory:
    """Bytes: what server and engine hold together, and the parts of what they may."""

    used_bytes: int
    weight_bytes: int
    kv_bytes: int
    torch_bytes: int

    @property
    def allowed_bytes(self) -> int:
        """Weights, planned K/V, what importing torch takes, and 200 MiB."""
        return self.weight_bytes + self.kv_bytes + self.torch_bytes + _ALLOWANCE_BYTES

    def to_text(self) -> str:
        """One line for people."""
        used, weights, kv, torch_, allowed = (
            f"{size / 2**20:,.0f}"
            for size in (self.used_bytes, self.weight_bytes, self.kv_bytes, self.torch_bytes, self.allowed_bytes)
        )
        return (
            f"server and engine: {used} MiB, to be within {allowed}: weights {weights}, K/V {kv}, importing torch {torch_}, 200"
        )


def measure_serving_memory(model: str, dtype: str, threads: int) -> ServingMemory:
    """Start a server, have it answer once, and look. Raises RuntimeError when it does not come up."""
    max_model_len = min(_MAX_MODEL_LEN, read_checked(model).max_positions)
    options = {"max_model_len": max_model_len, "max_running_req": 1}
    engine = build_engine(EngineConfig(model_path=model, dtype=dtype, device="cpu", threads=threads, **options))  # type: ignore[arg-type]
    weight_bytes = engine.executor.target.memory_bytes()
    kv_bytes = engine.executor.memory.pages.memory_bytes()
    del engine
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True)
    return ServingMemory(_served_bytes(model, dtype, threads, max_model_len), weight_bytes, kv_bytes, _pss_bytes(probe.stdout))


def _served_bytes(model: str, dtype: str, threads: int, max_model_len: int) -> int:
    port = _free_port()
    command = [sys.executable, "-m", "paceline_runtime", "serve", "--model", model, "--dtype", dtype, "--device", "cpu"]
    command += ["--port", str(port), "--threads", str(threads), "--log-level", "error"]
    command += ["--max-model-len", str(max_model_len), "--max-running-requests", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            _answer_once(server, f"http://127.0.0.1:{port}")
            return sum(_pss_bytes(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid in _tree(server.pid))
        finally:
            server.terminate()


def _answer_once(server: subprocess.Popen[str], address: str) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while not _is_ready(address):
        if server.poll() is not None:
            assert server.stderr is not None
            raise RuntimeError(f"the server ended while loading: {server.stderr.read().strip()}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the server was not ready within {_READY_TIMEOUT_S:.0f} s")
        time.sleep(0.2)
    name = httpx.get(f"{address}/v1/models").raise_for_status().json()["data"][0]["id"]
    body = {"model": name, "prompt": "Memory is", "max_tokens": 32}
    httpx.post(f"{address}/v1/completions", json=body, timeout=_READY_TIMEOUT_S).raise_for_status()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=2.0).is_success
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # ended while we looked
        children.setdefault(parent, []).append(int(name))
    return [pid, *(below for child in children.get(pid, []) for below in _tree(child))]


def _pss_bytes(rollup: str) -> int:
    return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
