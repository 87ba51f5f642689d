"""A model hub in a pod: the folders below /srv as repositories `org/NAME`, with listings, ranges and digests.

Runs as a container of the cluster of processes (image `stub/hub:test`), from this file alone.
"""

import hashlib
import http.server
import json
import re
from pathlib import Path

ROOT = Path("/srv")
COMMIT = "c0ffee" + "0" * 34


class Handler(http.server.BaseHTTPRequestHandler):
    """`/api/models/org/NAME/revision/REV` and `/org/NAME/resolve/REV/FILE`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if listing := re.fullmatch(r"/api/models/org/([\w.-]+)/revision/[\w.-]+", path):
            self._list(ROOT / listing[1])
        elif file := re.fullmatch(r"/org/([\w.-]+)/resolve/[\w.-]+/([\w.-]+)", path):
            self._file(ROOT / file[1] / file[2])
        else:
            self._answer(404, b"not here")

    def _list(self, folder: Path) -> None:
        siblings = [_sibling(path) for path in sorted(folder.iterdir())]
        self._answer(200, json.dumps({"sha": COMMIT, "siblings": siblings}).encode())

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, b"not here")
            return
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, data)
            return
        first = int(wanted[1])
        body = data[first : int(wanted[2]) + 1 if wanted[2] else None]
        self._answer(206, body, {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{len(data)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body)), "X-Repo-Commit": COMMIT}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _sibling(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {"rfilename": path.name, "size": len(data), "blobId": blob}


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
