"""What the inspect Job's pod runs: reads both checkpoints' headers and leaves a verdict as its termination message.

`python -m paceline_operator.inspect --target PATH_OR_URI [--draft ...] --algorithm NAME`. Exit code 0 with a verdict, 1
with a sentence when the metadata could not be had: the Job then tries again. No Kubernetes client is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline_compat import (
    DraftFacts,
    Inspection,
    Location,
    MetadataError,
    Options,
    TargetFacts,
    Verdict,
    inspect_pair,
    option_problems,
    pinned_location,
)
from paceline_compat.places.uri import HubUri, UriError, parse_uri
from paceline_operator.errors import Problem
from paceline_operator.gates.inspection import COMPATIBLE, UNKNOWN
from paceline_operator.gates.judgement import Judgement, judge
from paceline_operator.names import ENV_DRAFT_HUB_TOKEN, TERMINATION_LOG, TERMINATION_LOG_BYTES

# Checkpoints and hubs say what they like; the status and the termination message have bounds.
MAX_FACT = 128
UNREADABLE = ("s3://", "oci://")


def main(argv: Sequence[str] | None = None, termination_log: Path = Path(TERMINATION_LOG)) -> int:
    """Inspect, write the message, return the exit code."""
    options = _parser().parse_args(argv)
    places = [place for place in (options.target, options.draft) if place]
    table = Options(options.algorithm, options.num_steps, tensor_parallel=max(1, options.num_gpus))
    if any(place.startswith(UNREADABLE) for place in places):
        asked = judge(Verdict(options.target, options.draft, option_problems(table)))
        judgement = _not_readable_in_place() if asked.outcome == COMPATIBLE else asked
        return _leave(termination_log, verdict_message(judgement, {}), 0)
    target, target_revision = pinned(options.target)
    draft_token = os.environ.get(ENV_DRAFT_HUB_TOKEN)
    draft, draft_revision = pinned(options.draft, draft_token) if options.draft else (None, "")
    found = inspect_pair(target, draft, table)
    judgement = judge(found.verdict)
    if judgement.outcome == UNKNOWN:
        return _leave(termination_log, judgement.message, 1)
    revisions = {"targetRevision": target_revision, "draftRevision": draft_revision}
    model = facts(found, options.target, options.draft, revisions)
    return _leave(termination_log, verdict_message(judgement, model), 0)


def facts(found: Inspection, target: str, draft: str | None, revisions: Mapping[str, str]) -> dict[str, Any]:
    """`status.model`: the facts that could be read."""
    known: dict[str, Any] = {**revisions}
    known["fetchedBytes"] = sum(
        fetched_bytes(place, one) for place, one in ((target, found.target), (draft or "", found.draft))
    )
    if found.target:
        known["architecture"] = found.target.architecture
    if found.draft:
        known["blockSize"] = found.draft.block_size
    return {name: value[:MAX_FACT] if isinstance(value, str) else value for name, value in known.items() if value}


def fetched_bytes(location: str, found: TargetFacts | DraftFacts | None) -> int:
    """Bytes of the tensors that a pod has to download; 0 for a checkpoint that is mounted or could not be read."""
    return sum(tensor.num_bytes for tensor in found.tensors.values()) if found and "://" in location else 0


def pinned(location: str, token: str | None = None) -> tuple[Location | str, str]:
    """What to read, and its revision for `status.model`: a hub's commit, or the named one where the hub does not tell.

    `token` stands in for HF_TOKEN. The revision is empty for places that are no hub. A place that cannot be opened stays a
    string: whoever reads it learns what is wrong with it.
    """
    try:
        uri = parse_uri(location)
    except UriError:
        return location, ""
    if not isinstance(uri, HubUri):
        return location, ""
    try:
        place, commit = pinned_location(location, token)
    except MetadataError:
        return location, uri.revision_or_main
    return place, commit or uri.revision_or_main


def verdict_message(judgement: Judgement, model: dict[str, Any]) -> str:
    """The verdict as JSON that fits into a termination message; a long text loses its end, never the outcome."""
    text = judgement.message
    while len(message := _message(judgement, model, text).encode()) > TERMINATION_LOG_BYTES:
        text = text[: len(text) - max(8, (len(message) - TERMINATION_LOG_BYTES) // 6)]
    return message.decode()


def _message(judgement: Judgement, model: dict[str, Any], text: str) -> str:
    shown = text if text == judgement.message else f"{text}…"
    return json.dumps({"outcome": judgement.outcome, "reason": judgement.reason, "model": model, "message": shown})


def _not_readable_in_place() -> Judgement:
    text = "headers of s3:// and oci:// sources are not read before they are fetched; the runtime checks them when it starts"
    return Judgement(UNKNOWN, "MetadataUnavailable", (Problem("", text),))


def _leave(termination_log: Path, message: str, code: int) -> int:
    print(message, file=sys.stderr if code else sys.stdout)
    termination_log.write_bytes(message.encode()[:TERMINATION_LOG_BYTES])
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline_operator.inspect", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--algorithm", default="off")
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--num-gpus", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
