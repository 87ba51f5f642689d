"""Addresses and credentials from the environment: checked, and never quoted."""

import pytest

from paceline_runtime.fetch.errors import RequestError
from paceline_runtime.fetch.sources.environment import address, credential


@pytest.mark.parametrize("value", ["", "ftp://h", "http://", "http://h:x", "https://u:p@h", "https://h?x=1", "h:80"])
def test_an_endpoint_must_be_a_plain_address(value: str) -> None:
    """The message names the variable and not what may be a password in it."""
    with pytest.raises(RequestError, match="HF_ENDPOINT") as caught:
        address({"HF_ENDPOINT": value}, "HF_ENDPOINT", "hf")

    assert "u:p" not in str(caught.value)


def test_a_broken_credential_is_refused_without_quoting_it() -> None:
    """The HTTP library's own error would quote it; a line end at its end is forgiven."""
    assert credential({"HF_TOKEN": "hf_abc\n"}, "HF_TOKEN") == "hf_abc"
    with pytest.raises(RequestError, match="HF_TOKEN holds characters") as caught:
        credential({"HF_TOKEN": "hf_abc\ndef"}, "HF_TOKEN")
    assert "hf_abc" not in str(caught.value)
