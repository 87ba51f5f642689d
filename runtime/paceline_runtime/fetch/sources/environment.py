"""Addresses and credentials from the environment, checked where they are read. No message ever quotes a credential."""

from collections.abc import Mapping

import httpx

from paceline_runtime.fetch.errors import RequestError


def address(environment: Mapping[str, str], variable: str, scheme: str) -> str:
    """The http(s) address in `variable`, without a slash at the end."""
    text = environment.get(variable, "").strip().rstrip("/")
    if not text:
        raise RequestError(f"{scheme}:// needs {variable}, the service's address: https://...")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise RequestError(f"{variable} is not an address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise RequestError(f"{variable} must read http(s)://host[:port][/path], without user, query or fragment")
    return text


def credential(environment: Mapping[str, str], variable: str) -> str | None:
    """The value of `variable` as a header can carry it, None when it is unset or empty.

    A line end at its end is what an `echo` into a secret leaves. Anything else that is not printable ASCII is refused here:
    the HTTP library would quote the value in its error.
    """
    value = environment.get(variable, "").strip()
    if not (value.isascii() and value.isprintable()):
        raise RequestError(f"{variable} holds characters that no credential has; was it copied whole and decoded?")
    return value or None
