"""`paceline bench step`: decode steps through the real engine at a model's real shape, and a prefill, beside their limit.

Called by the bench's command. Weights are random and acceptance is made up, and both are said; the time of a step is real.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from paceline_runtime.bench.acceptance import SyntheticAcceptance, assumed_tokens_per_step
from paceline_runtime.bench.drive import WARM_UP_STEPS, decode_times, make_engine, prefill_s
from paceline_runtime.bench.limits import Limits, measure_limits
from paceline_runtime.bench.report import device_text, table, write_json
from paceline_runtime.bench.subjects import Subject, subject
from paceline_runtime.bench.traffic import StepTraffic, step_traffic
from paceline_runtime.errors import ConfigError

DEFAULT_NUM_STEPS = {"off": 0, "ngram": 3, "mtp": 3, "dflash": 7}
_HEAD = ("algorithm", "k", "requests", "step ms", "launch ms", "tokens/step", "GB", "limit ms", "of limit", "of read", "tok/s")


@dataclass(frozen=True)
class Decode:
    """Decode steps of one batch size. `launch_s` is the part of a step in which the host prepares and launches work."""

    algorithm: str
    num_steps: int
    num_requests: int
    step_s: float
    launch_s: float
    tokens_per_step: float
    tokens_per_step_from: str
    traffic: StepTraffic

    @property
    def tokens_per_s(self) -> float:
        """Of all requests together, at the assumed acceptance."""
        return self.num_requests * self.tokens_per_step / self.step_s

    def limit_s(self, bytes_per_s: float) -> float:
        """The least time in which the step's bytes can move."""
        return self.traffic.total_bytes / bytes_per_s

    def to_dict(self, limits: Limits) -> dict[str, Any]:
        """For the JSON, with the limits it stands beside."""
        copy_s, read_s = self.limit_s(limits.copy_bytes_per_s), self.limit_s(limits.read_bytes_per_s)
        derived = {"tokens_per_s": self.tokens_per_s, "limit_copy_s": copy_s, "limit_read_s": read_s}
        return {**asdict(self), "traffic": self.traffic.to_dict(), **derived, "share_of_limit": copy_s / self.step_s}


@dataclass(frozen=True)
class Prefill:
    """Seconds from a prompt of `num_tokens` to its first token, without speculation."""

    num_tokens: int
    seconds: float


def run(args: argparse.Namespace) -> int:
    """Measure, print and write what the flags ask for."""
    _refuse_ignored(args)
    with subject(args, _max_model_len(args)) as one:
        device = one.target.device
        limits = measure_limits(device)
        _print_head(args, one, limits)
        prefill = _prefill(args, one)
        if prefill is not None:
            speed = prefill.num_tokens / prefill.seconds
            _tell(f"prefill of {prefill.num_tokens} tokens: {prefill.seconds * 1e3:.1f} ms, {speed:,.0f} tok/s")
        decodes, refused = _decodes(args, one)
        print(table(_HEAD, [_cells(decode, limits) for decode in decodes]))
        for reason in refused:
            print(f"not measured: {reason}")
    if args.json:
        figures = {
            "shape": {"name": one.shape.name, "layers": one.target.shape.num_layers, "inferred": one.shape.inferred},
            "dtype": str(one.target.dtype).removeprefix("torch."),
            "context_tokens": args.context_tokens,
            "limits": asdict(limits),
            "prefill": asdict(prefill) if prefill else None,
            "decode": [decode.to_dict(limits) for decode in decodes],
            "not_measured": refused,
        }
        write_json(args.json, device, figures)
    return 0 if decodes else 1


def _refuse_ignored(args: argparse.Namespace) -> None:
    given = {"--num-steps": args.num_steps, "--tokens-per-step": args.tokens_per_step}
    ignored = [flag for flag, value in given.items() if value is not None and set(args.algorithms) == {"off"}]
    if ignored:
        raise ConfigError([f"{flag} has no meaning with --algorithms off: drop it or name another" for flag in ignored])


def _max_model_len(args: argparse.Namespace) -> int:
    widest = 1 + max(_num_steps(args, algorithm) for algorithm in args.algorithms)
    return int(max(args.prefill_tokens + 1, args.context_tokens + (WARM_UP_STEPS + args.steps + 4) * widest))


def _num_steps(args: argparse.Namespace, algorithm: str) -> int:
    return 0 if algorithm == "off" else int(args.num_steps or DEFAULT_NUM_STEPS[algorithm])


def _prefill(args: argparse.Namespace, one: Subject) -> Prefill | None:
    if not args.prefill_tokens:
        return None
    sizes = {"num_requests": 1, "max_model_len": _max_model_len(args), "prefill_chunk": args.prefill_chunk}
    engine = make_engine(one, None, **sizes)
    return Prefill(args.prefill_tokens, prefill_s(engine, args.prefill_tokens, one.target.device))


def _decodes(args: argparse.Namespace, one: Subject) -> tuple[list[Decode], list[str]]:
    """Figures of every algorithm that this target can have, and why the others have none."""
    decodes: list[Decode] = []
    refused: list[str] = []
    for algorithm in args.algorithms:
        try:
            for decode in _measure(args, one, algorithm):
                decodes.append(decode)
                _tell(f"{algorithm}, {decode.num_requests} requests: {decode.step_s * 1e3:.2f} ms a step")
        except ValueError as error:
            refused.append(f"{algorithm}: {error}")
    return decodes, refused


def _measure(args: argparse.Namespace, one: Subject, algorithm: str) -> Iterator[Decode]:
    num_steps, max_model_len = _num_steps(args, algorithm), _max_model_len(args)
    tokens, source = assumed_tokens_per_step(one.shape, algorithm, num_steps)
    if args.tokens_per_step is not None and num_steps:
        tokens, source = args.tokens_per_step, "given"
    if not 1.0 <= tokens <= 1 + num_steps:
        raise ConfigError([f"--tokens-per-step must be between 1 and {1 + num_steps} at {num_steps} drafts, got {tokens:g}"])
    proposer = one.proposer(algorithm, num_steps or None, max_model_len)
    sizes = {"num_requests": max(args.requests), "max_model_len": max_model_len, "prefill_chunk": args.prefill_chunk}
    # Prompts at once: by shares, those that decode would reach their ends while the last prompts wait.
    sizes["decode_prefill_tokens"] = args.prefill_chunk
    engine = make_engine(one, proposer, **sizes, accept=SyntheticAcceptance(tokens, one.target.device))
    for num_requests in args.requests:
        step_s, launch_s = decode_times(engine, num_requests, args.context_tokens, args.steps)
        traffic = step_traffic(one.shape.text, one.target, proposer, num_requests, args.context_tokens)
        yield Decode(algorithm, num_steps, num_requests, step_s, launch_s, tokens, source, traffic)


def _tell(line: str) -> None:
    """Say a figure as soon as it is there: a measurement that is cut off has still said what it knew."""
    print(line, flush=True)


def _print_head(args: argparse.Namespace, one: Subject, limits: Limits) -> None:
    weights = "random weights" if one.is_dummy else "its own weights"
    dtype = str(one.target.dtype).removeprefix("torch.")
    print(f"{one.shape.name}, {one.target.shape.num_layers} layers, {dtype}, {weights}, contexts of {args.context_tokens}")
    print(device_text(one.target.device))
    copy, read = limits.copy_bytes_per_s / 1e9, limits.read_bytes_per_s / 1e9
    print(f"measured here: copy {copy:,.0f} GB/s (read and written), pure read {read:,.0f} GB/s")
    print("acceptance is synthetic: tokens/step is assumed, never measured; the limit is the step's bytes at copy speed")


def _cells(decode: Decode, limits: Limits) -> tuple[str, ...]:
    copy_s, read_s = decode.limit_s(limits.copy_bytes_per_s), decode.limit_s(limits.read_bytes_per_s)
    return (
        decode.algorithm,
        str(decode.num_steps),
        str(decode.num_requests),
        f"{decode.step_s * 1e3:.2f}",
        f"{decode.launch_s * 1e3:.2f}",
        f"{decode.tokens_per_step:.2f} ({decode.tokens_per_step_from})",
        f"{decode.traffic.total_bytes / 1e9:.2f}",
        f"{copy_s * 1e3:.2f}",
        f"{copy_s / decode.step_s:.2f}",
        f"{read_s / decode.step_s:.2f}",
        f"{decode.tokens_per_s:,.1f}",
    )
