"""What a run is configured with: `EngineConfig` for whoever builds an engine, `ServeConfig` for the HTTP server.

`flags.py`, `LLM(...)` and the tests fill it in. It holds values only: it reads no files and knows neither argparse nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_compat.memory.planner import FEW_STATE_SLOTS

MAX_THREADS = 1024
"""More than CPUs have; tens of thousands end the process without a word."""
CacheType = Literal["prefix", "naive"]
SpeculativeAlgorithm = Literal["off", "ngram", "mtp", "dflash"]
DType = Literal["auto", "float64", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How to load a model and run it.

    `None` means: derived from the checkpoint and the memory plan. `memory_ratio` is the share of free device memory the plan
    may use when neither `memory_bytes` nor `num_pages` says it outright; a page holds 64 tokens. `overlap` runs the device one
    step ahead of the host (lag 1); `None` does so on a GPU only, since it hides nothing elsewhere. `cuda_graphs` replays decode
    steps on a GPU instead of launching them kernel by kernel; a CPU has none. `speculative_adaptive` verifies fewer drafts,
    down to none, where that is measured to be faster. `decode_prefill_tokens` fixes the prompt tokens of a step that also
    decodes; `None` measures how many take about as long as the decode step. Requests without a seed take `seed`.
    `dummy_weights` draws random weights, for benchmarks without a checkpoint. `tiles` is a file of `paceline bench tune`: how
    products of few rows are cut on this GPU.
    """

    model_path: str
    dtype: str = "auto"
    device: str = "auto"
    max_running_req: int = 4
    max_model_len: int | None = None
    max_prefill_tokens: int = 2048
    decode_prefill_tokens: int | None = None
    num_pages: int | None = None
    num_state_slots: int | None = None
    memory_bytes: int | None = None
    memory_ratio: float = 0.9
    cache_type: CacheType = "prefix"
    speculative_algorithm: SpeculativeAlgorithm = "off"
    speculative_num_steps: int | None = None
    speculative_draft_model_path: str | None = None
    speculative_adaptive: bool = False
    overlap: bool | None = None
    cuda_graphs: bool = True
    seed: int = 0
    dummy_weights: bool = False
    tiles: str | None = None
    threads: int | None = None

    def problems(self) -> list[str]:
        """Everything that is wrong and shows without opening the checkpoint, named by flag; empty when nothing is."""
        return [message for ok, message in (*self._range_checks(), *self._speculation_checks()) if not ok]

    def _range_checks(self) -> list[tuple[bool, str]]:
        def at_least(least: int, field: str, flag: str) -> tuple[bool, str]:
            value = getattr(self, field)
            return value is None or value >= least, f"{flag} must be at least {least}, got {value}"

        return [
            (bool(self.model_path), "--model is empty: give a folder with safetensors or a .gguf file"),
            (self.tiles != "", "--tiles is empty: name a file of `paceline bench tune`, or drop it"),
            (self.dtype in get_args(DType), f"--dtype must be one of {', '.join(get_args(DType))}, got {self.dtype!r}"),
            (self.cache_type in get_args(CacheType), f"--cache-type must be prefix or naive, got {self.cache_type!r}"),
            (0.0 < self.memory_ratio <= 1.0, f"--memory-ratio must be above 0 and at most 1, got {self.memory_ratio}"),
            at_least(1, "max_running_req", "--max-running-requests"),
            at_least(2, "max_model_len", "--max-model-len"),
            at_least(PAGE_TOKENS, "max_prefill_tokens", "--max-prefill-tokens"),  # prompts are cut at page boundaries
            at_least(PAGE_TOKENS, "decode_prefill_tokens", "--decode-prefill-tokens"),
            (
                (self.decode_prefill_tokens or 0) <= self.max_prefill_tokens,
                f"--decode-prefill-tokens must be at most --max-prefill-tokens, got {self.decode_prefill_tokens}",
            ),
            at_least(1, "num_pages", "--num-pages"),
            (
                self.num_state_slots is None or self.num_state_slots >= 2 * self.max_running_req,
                FEW_STATE_SLOTS,
            ),
            at_least(1, "memory_bytes", "--memory-bytes"),
            at_least(1, "speculative_num_steps", "--speculative-num-steps"),
            at_least(1, "threads", "--threads"),
            ((self.threads or 0) <= MAX_THREADS, f"--threads must be at most {MAX_THREADS}, got {self.threads}"),
        ]

    def _speculation_checks(self) -> list[tuple[bool, str]]:
        algorithm, draft, steps = (
            self.speculative_algorithm,
            self.speculative_draft_model_path,
            self.speculative_num_steps,
        )
        known = get_args(SpeculativeAlgorithm)
        return [
            (algorithm in known, f"--speculative-algorithm must be one of {', '.join(known)}, got {algorithm!r}"),
            (
                algorithm != "dflash" or bool(draft),
                "--speculative-algorithm dflash needs --speculative-draft-model-path: the folder of a DFlash 2 draft",
            ),
            (
                algorithm == "dflash" or draft is None,
                f"--speculative-draft-model-path has no meaning with --speculative-algorithm {algorithm}: "
                "drop it or choose dflash",
            ),
            (
                algorithm != "off" or steps is None,
                "--speculative-num-steps has no meaning with --speculative-algorithm off: drop it or choose one",
            ),
            (
                algorithm != "off" or not self.speculative_adaptive,
                "--speculative-adaptive has no meaning with --speculative-algorithm off: drop it or choose one",
            ),
        ]


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How the HTTP server presents the engine. With empty `api_keys` everyone may ask; with empty `admin_keys` nobody may
    administer.

    `keepalive_s` is how long a stream may be silent before an empty chunk is sent.
    """

    engine: EngineConfig
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str = ""
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    drain_timeout_s: float = 30.0
    keepalive_s: float = 15.0
    max_body_bytes: int = 16 * 1024 * 1024
    log_level: str = "info"

    def problems(self) -> list[str]:
        """Everything wrong with the server's and the engine's values, named by flag."""
        checks = [
            # An empty host would listen on every address.
            (bool(self.host), "--host is empty: give it an address, 0.0.0.0 for all of them"),
            (0 <= self.port <= 65535, f"--port must be between 0 and 65535, got {self.port}"),
            (self.drain_timeout_s >= 0, f"--drain-timeout-s must not be negative, got {self.drain_timeout_s:g}"),
            (self.keepalive_s > 0, f"--keepalive-s must be above 0, got {self.keepalive_s:g}"),
            (
                not set(self.api_keys) & set(self.admin_keys),
                "--admin-key is an API key too: give administration a key of its own",
            ),
            (self.max_body_bytes >= 1, f"--max-body-bytes must be at least 1, got {self.max_body_bytes}"),
        ]
        return self.engine.problems() + [message for ok, message in checks if not ok]

    @property
    def model_name(self) -> str:
        """The name that requests put into `model`: as configured, or the last part of the path without `.gguf`."""
        return self.served_model_name or self.engine.model_path.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
