"""Every environment variable that the runtime reads, in one place. The commands read them at start-up, never later.

A variable that is set to something unusable is an error, not a default.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline_runtime.errors import ConfigError

API_KEY = "PACELINE_API_KEY"
ADMIN_KEY = "PACELINE_ADMIN_KEY"


def api_key(environment: Mapping[str, str]) -> str | None:
    """The API key that clients must send, None when the variable is unset."""
    return _key(environment, API_KEY)


def admin_key(environment: Mapping[str, str]) -> str | None:
    """The key of administration, None when the variable is unset."""
    return _key(environment, ADMIN_KEY)


def _key(environment: Mapping[str, str], name: str) -> str | None:
    key = environment.get(name)
    if key is not None and not key.strip():
        raise ConfigError([f"{name} is set but empty: unset it or give it a key"])
    return key.strip() if key else None
