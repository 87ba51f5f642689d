"""Whom the chart's own check trusts, by a TLS handshake in memory."""

import base64
import ssl

import pytest
import trustme

from paceline_operator.selftest import trusting

AUTHORITY = trustme.CA()
LEAF = AUTHORITY.issue_cert("operator.space.svc")


def shake_hands(client_context: ssl.SSLContext) -> None:
    """Raises ssl.SSLError when the client does not trust LEAF."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    LEAF.configure_cert(server_context)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="operator.space.svc")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


def encoded(pem: trustme.Blob) -> str:
    return base64.b64encode(pem.bytes()).decode()


def test_an_authority_is_trusted_from_a_file_or_as_text(tmp_path):
    """As the chart mounts it, or as caBundle holds it."""
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.crt"))

    shake_hands(trusting(str(tmp_path / "ca.crt"), ""))
    shake_hands(trusting(None, encoded(AUTHORITY.cert_pem)))


def test_another_authority_is_not_trusted():
    """A check that trusts everybody checks nothing."""
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shake_hands(trusting(None, encoded(trustme.CA().cert_pem)))
