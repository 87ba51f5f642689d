"""What `helm test` runs: is the operator ready, and does its webhook tell good from bad? Standard library only.

`python -m paceline_operator.selftest --health URL [--webhook URL --ca FILE]`; exit code 1 and a sentence when not.
"""

from __future__ import annotations

import argparse
import base64
import json
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from typing import Any

from paceline_operator.admission.sample import sample_review

TIMEOUT_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks that the arguments allow."""
    parser = argparse.ArgumentParser(prog="paceline_operator.selftest", description=__doc__)
    parser.add_argument("--health", required=True)
    parser.add_argument("--webhook")
    parser.add_argument("--ca")
    parser.add_argument("--ca-base64", default="")
    options = parser.parse_args(argv)
    try:
        problems = check(options.health, options.webhook, trusting(options.ca, options.ca_base64))
    except OSError as error:
        problems = [f"no answer: {error}"]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def trusting(ca: str | None, ca_base64: str) -> ssl.SSLContext:
    """A client that trusts the authority in a file, or the authority in base64, as a webhook configuration holds it."""
    return ssl.create_default_context(cafile=ca, cadata=base64.b64decode(ca_base64).decode() or None)


def check(health: str, webhook: str | None, context: ssl.SSLContext) -> list[str]:
    """What is wrong with an installed operator. Raises OSError where nothing answers or TLS fails."""
    with urllib.request.urlopen(f"{health}/readyz", timeout=TIMEOUT_S) as answer:
        problems = [] if answer.status == 200 else [f"/readyz answers {answer.status}"]
    if webhook is None:
        return problems
    if not _review(webhook, context, "pvc://probe")["allowed"]:
        problems.append("the webhook refuses a good resource")
    if _review(webhook, context, "ftp://probe")["allowed"]:
        problems.append("the webhook lets a bad resource in")
    return problems


def _review(webhook: str, context: ssl.SSLContext, uri: str) -> dict[str, Any]:
    body = json.dumps(sample_review(uri)).encode()
    request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        response: dict[str, Any] = json.load(answer)["response"]
        return response


if __name__ == "__main__":
    sys.exit(main())
