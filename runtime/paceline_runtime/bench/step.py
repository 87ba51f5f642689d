"""`paceline bench step`: decode steps through the real engine at a model's real shape, and a prefill, beside their limit.

The bench's command calls it. Weights are random and acceptance is made up, and it says so; the time of a step is real.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline_runtime.bench.acceptance import assumed_tokens_per_step
from paceline_runtime.bench.drive import Sizes, make_engine, prefill_s, released
from paceline_runtime.bench.limits import Limits, measure_limits
from paceline_runtime.bench.parts import PROFILE_HEAD, parts_of, profile_rows
from paceline_runtime.bench.plot import lines_of, svg
from paceline_runtime.bench.report import device_text, table, write_json
from paceline_runtime.bench.shapes import Shape, find_shape
from paceline_runtime.bench.subjects import Subject, subject
from paceline_runtime.bench.sweep import Acceptance, Cell, Decode, Run, Unfit, measure
from paceline_runtime.engine.build import pick_device
from paceline_runtime.errors import ConfigError

DEFAULT_PREFILL_TOKENS = 8192
DEFAULT_NUM_DRAFTS = {"ngram": 3, "mtp": 3, "dflash": 7}
_HEAD = (
    *("algorithm", "k", "requests", "context", "step ms", "device ms", "host ms", "idle", "kernels"),
    *("tokens/step", "GB", "limit ms", "of limit", "of read", "tok/s"),
)
_PRETENDED = "contexts are pretended: no prompt was computed"
_NOT_ON_A_CPU = (
    "not measured on a CPU: device time, idle share and kernels, which a GPU's trace tells, and the host's part of a step, "
    "since host and device are one"
)


@dataclass(frozen=True)
class Prefill:
    """Seconds from a prompt of `num_tokens` to its first token, without speculation."""

    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class Method:
    """An algorithm at a depth, and what a step of it is taken to commit."""

    algorithm: str
    num_drafts: int
    acceptance: Acceptance


def run(args: argparse.Namespace) -> int:
    """Measure, print and write what the flags ask for."""
    _refuse(args)
    methods = _methods(args, find_shape(args.shape))
    how = Run(args.steps, args.prefill_chunk, args.pretend_contexts)
    prefill_tokens = _prefill_tokens(args)
    room = max(cell.max_model_len(how) for method in methods for cell in _cells(args, method))
    with subject(args, max(room, prefill_tokens + 1)) as one:
        limits = measure_limits(one.target.device)
        _print_head(one, limits, how)
        prefill = _prefill(args, one, prefill_tokens)
        measured, refused = _measure(args, one, methods, how)
        decodes = [found for found in measured if isinstance(found, Decode)]
        print(table(_HEAD, [_row(found, limits) for found in measured]))
        if any(decode.times.trace is None for decode in decodes):
            print(_NOT_ON_A_CPU)
        for reason in refused:
            print(f"not measured: {reason}")
        if args.profile:
            _print_profiles(decodes, limits)
        if args.plot and decodes:
            _plot(args.plot, decodes, one, how)
    if args.json:
        figures = {
            "shape": {"name": one.shape.name, "layers": one.target.facts.num_layers, "inferred": one.shape.inferred},
            "dtype": str(one.target.dtype).removeprefix("torch."),
            "limits": asdict(limits),
            "contexts_are_pretended": how.pretends,
            "prefill": asdict(prefill) if prefill else None,
            "decode": [decode.to_dict(limits) for decode in decodes],
            "not_measured": refused,
        }
        write_json(args.json, one.target.device, figures)
    return 0 if decodes else 1


def _refuse(args: argparse.Namespace) -> None:
    """What would be ignored, or measured in vain."""
    given = {"--num-steps": args.num_steps, "--tokens-per-step": args.tokens_per_step}
    ignored = [flag for flag, value in given.items() if value is not None and set(args.algorithms) == {"off"}]
    problems = [f"{flag} has no meaning with --algorithms off: drop it or name another" for flag in ignored]
    if args.profile and pick_device(args.device).type != "cuda":
        problems.append("--profile lists a GPU's kernels and a CPU has none: drop it, or measure on a GPU")
    if args.pretend_contexts and args.prefill_tokens:
        problems.append("--prefill-tokens measures a prefill and --pretend-contexts computes none: drop one of them")
    if problems:
        raise ConfigError(problems)


def _prefill_tokens(args: argparse.Namespace) -> int:
    if args.prefill_tokens is not None:
        return int(args.prefill_tokens)
    return 0 if args.pretend_contexts else DEFAULT_PREFILL_TOKENS


def _methods(args: argparse.Namespace, shape: Shape) -> list[Method]:
    """Every algorithm at every depth asked for; ConfigError for an acceptance that a depth cannot have."""
    found: list[Method] = []
    for algorithm in args.algorithms:
        for num_drafts in (0,) if algorithm == "off" else args.num_steps or (DEFAULT_NUM_DRAFTS[algorithm],):
            tokens, source = assumed_tokens_per_step(shape, algorithm, num_drafts)
            if args.tokens_per_step is not None and num_drafts:
                tokens, source = args.tokens_per_step, "given"
            if not 1.0 <= tokens <= 1 + num_drafts:
                most = f"between 1 and {1 + num_drafts} at {num_drafts} drafts"
                raise ConfigError([f"--tokens-per-step must be {most}, got {tokens:g}"])
            found.append(Method(algorithm, num_drafts, Acceptance(tokens, source)))
    return found


def _cells(args: argparse.Namespace, method: Method) -> list[Cell]:
    sizes = [(num_requests, context) for context in args.context_tokens for num_requests in args.requests]
    return [Cell(method.algorithm, method.num_drafts, *size) for size in sizes]


def _prefill(args: argparse.Namespace, one: Subject, num_tokens: int) -> Prefill | None:
    if not num_tokens:
        return None
    engine = make_engine(one, None, Sizes(1, num_tokens + 1, args.prefill_chunk))
    with released(engine):
        seconds = prefill_s(engine, num_tokens, one.target.device)
    _tell(f"prefill of {num_tokens} tokens: {seconds * 1e3:.1f} ms, {num_tokens / seconds:,.0f} tok/s")
    return Prefill(num_tokens, seconds)


def _measure(
    args: argparse.Namespace, one: Subject, methods: Sequence[Method], how: Run
) -> tuple[list[Decode | Unfit], list[str]]:
    """Every cell of the methods that this target can have, and why what is missing is missing."""
    measured: list[Decode | Unfit] = []
    refused: list[str] = []
    for method in methods:
        cells = _cells(args, method)
        try:
            longest = max(cell.max_model_len(how) for cell in cells)
            proposer = one.proposer(method.algorithm, method.num_drafts or None, longest)
        except ValueError as error:
            refused.append(f"{method.algorithm}: {error}")
            continue
        for cell in cells:
            found = measure(one, proposer, cell, method.acceptance, how)
            measured.append(found)
            if isinstance(found, Unfit):
                refused.append(f"{cell}: {found.reason}")
            else:
                _tell(f"{cell}: {found.times.step_s * 1e3:.2f} ms a step")
    return measured, refused


def _tell(line: str) -> None:
    """Say a figure as soon as it is there: a measurement that is cut off has still said what it knew."""
    print(line, flush=True)


def _print_head(one: Subject, limits: Limits, how: Run) -> None:
    weights = "random weights" if one.is_dummy else "its own weights"
    dtype = str(one.target.dtype).removeprefix("torch.")
    print(f"{one.shape.name}, {one.target.facts.num_layers} layers, {dtype}, {weights}")
    print(device_text(one.target.device))
    copy, read = limits.copy_bytes_per_s / 1e9, limits.read_bytes_per_s / 1e9
    print(f"measured here: copy {copy:,.0f} GB/s (read and written), pure read {read:,.0f} GB/s")
    print("acceptance is synthetic: tokens/step is assumed, never measured; the limit is the step's bytes at copy speed")
    if how.pretends:
        print(_PRETENDED)


def _plot(file: str, decodes: Sequence[Decode], one: Subject, how: Run) -> None:
    lines = lines_of((decode.cell, decode.times.step_s) for decode in decodes)
    title = f"{one.shape.name}, {device_text(one.target.device)}"
    Path(file).write_text(svg(lines, f"{title}; {_PRETENDED}" if how.pretends else title))


def _row(found: Decode | Unfit, limits: Limits) -> tuple[str, ...]:
    cell = found.cell
    name = (cell.algorithm, str(cell.num_drafts), str(cell.num_requests), str(cell.context_tokens))
    if isinstance(found, Unfit):
        return (*name, "no room", *["-"] * (len(_HEAD) - len(name) - 1))
    times, trace = found.times, found.times.trace
    copy_s, read_s = found.limit_s(limits.copy_bytes_per_s), found.limit_s(limits.read_bytes_per_s)
    return (
        *name,
        f"{times.step_s * 1e3:.2f}",
        f"{trace.busy_s * 1e3:.2f}" if trace else "-",
        "-" if times.host_s is None else f"{times.host_s * 1e3:.2f}",
        f"{trace.idle_share:.3f}" if trace else "-",
        f"{trace.num_kernels:,.0f}" if trace else "-",
        f"{found.acceptance.tokens_per_step:.2f} ({found.acceptance.source})",
        f"{found.traffic.total_bytes / 1e9:.2f}",
        f"{copy_s * 1e3:.2f}",
        f"{copy_s / times.step_s:.2f}",
        f"{read_s / times.step_s:.2f}",
        f"{found.tokens_per_s:,.1f}",
    )


def _print_profiles(decodes: Sequence[Decode], limits: Limits) -> None:
    for decode in decodes:
        if decode.times.trace is not None:
            print(f"\nkernels of a step, {decode.cell}")
            print(table(PROFILE_HEAD, profile_rows(parts_of(decode.times.trace, decode.traffic), limits.copy_bytes_per_s)))
    print("bytes are known by part: which of its kernels moves which is not in a trace")
