"""One file from a web server, over real TLS."""

import hashlib
import ssl
from pathlib import Path

import pytest
import trustme
from fetch_runner import fetch_now, files_in
from fetch_servers import Site, serve

CONFIG, WEIGHTS = b'{"model_type": "qwen3"}', bytes(range(256)) * 4096


def test_https_file_is_fetched_over_real_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private authority is trusted through SSL_CERT_FILE, an unknown one is not."""
    authority, site = trustme.CA(), Site()
    site.files["/models/tiny.gguf"] = WEIGHTS
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def tls(server: object) -> None:
        server.socket = context.wrap_socket(server.socket, server_side=True)  # type: ignore[attr-defined]

    digest = hashlib.sha256(WEIGHTS).hexdigest()
    with serve(site, wrap=tls, scheme="https"):
        unknown = fetch_now(f"{site.url}/models/tiny.gguf", tmp_path / "u", "--max-retries", "0")
        with authority.cert_pem.tempfile() as bundle:
            monkeypatch.setenv("SSL_CERT_FILE", bundle)
            result = fetch_now(f"{site.url}/models/tiny.gguf#sha256={digest}", tmp_path / "k")

    assert unknown.code == 6
    assert "CERTIFICATE_VERIFY_FAILED" in unknown.error
    assert result.code == 0, result.error
    assert files_in(tmp_path / "k") == {"tiny.gguf": WEIGHTS}
