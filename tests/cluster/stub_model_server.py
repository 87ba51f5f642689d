"""A model server for tests of the operator: what its pods' probes, metrics and clients see, without a model.

Runs as a container of the cluster of processes (image `stub/runtime:test`). It takes the arguments of `paceline serve` and
reports what it was given; `fetch` is the real one.
"""

import http.server
import itertools
import json
import os
import signal
import sys
import threading

NUM_SCRAPES = itertools.count(1)
METRICS = """paceline_spec_drafted_tokens_total{{position="0"}} {drafted}
paceline_spec_accepted_tokens_total{{position="0"}} {accepted}
paceline_spec_steps_total {steps}
"""


def metrics() -> str:
    """The figures of a busy server: they grow from one scrape to the next, and the rate stays."""
    n = next(NUM_SCRAPES)
    return METRICS.format(drafted=1000 * n, accepted=400 * n, steps=500 * n)


class Handler(http.server.BaseHTTPRequestHandler):
    """Probes, metrics, and a chat answer that names the server's arguments."""

    def do_GET(self) -> None:
        self._answer(metrics() if self.path == "/metrics" else "ok")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = json.dumps({"args": sys.argv[1:], "has_key": "PACELINE_API_KEY" in os.environ})
        self._answer(json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}))

    def log_message(self, *args: object) -> None:
        """Probes come every few seconds."""

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["fetch"]:
        from paceline_runtime.cli import main

        sys.exit(main())
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
