"""`paceline serve`: flags to a checked configuration, logging, progress on the console, and the server's exit status.

`cli` calls it. The server itself is in `lifecycle`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline_runtime import env, messages
from paceline_runtime.config import ServeConfig
from paceline_runtime.errors import ConfigError
from paceline_runtime.flags import add_engine_arguments, engine_config, size_bytes
from paceline_runtime.server.lifecycle import Watcher, serve

LOG_LEVELS = ("debug", "info", "warning", "error")
PROGRESS_STEP = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the server, and those of its engine."""
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any free one (default: 8000)")
    server.add_argument(
        "--served-model-name", default="", metavar="NAME", help="name in the API (default: the path's last part)"
    )
    server.add_argument("--api-key", action="append", default=[], metavar="KEY", help="key that clients must send; repeatable")
    server.add_argument("--api-key-file", metavar="PATH", help="file with one key per line")
    server.add_argument(
        "--admin-key", action="append", default=[], metavar="KEY", help="key for /v1/cache/rebuild, off without; repeatable"
    )
    server.add_argument("--admin-key-file", metavar="PATH", help="file with one admin key per line")
    server.add_argument(
        "--drain-timeout-s", type=float, default=30.0, metavar="S", help="wait for requests at the end (default: 30)"
    )
    server.add_argument(
        "--keepalive-s", type=float, default=15.0, metavar="S", help="an empty chunk after so long a silence (default: 15)"
    )
    server.add_argument(
        "--max-body-bytes", type=size_bytes, default="16MiB", metavar="SIZE", help="largest request read (default: 16MiB)"
    )
    server.add_argument("--log-level", default="info", choices=LOG_LEVELS, help="what to log (default: info)")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped; the exit status."""
    config = serve_config(args)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return asyncio.run(serve(config, console(config)))


def serve_config(args: argparse.Namespace) -> ServeConfig:
    """The configuration that the flags and the environment describe; raises `ConfigError` with all that is wrong."""
    config = ServeConfig(
        engine=engine_config(args),
        host=args.host,
        port=args.port,
        served_model_name=args.served_model_name,
        api_keys=_keys("--api-key", args.api_key, env.api_key(os.environ), args.api_key_file),
        admin_keys=_keys("--admin-key", args.admin_key, env.admin_key(os.environ), args.admin_key_file),
        drain_timeout_s=args.drain_timeout_s,
        keepalive_s=args.keepalive_s,
        max_body_bytes=args.max_body_bytes,
        log_level=args.log_level,
    )
    if problems := config.problems():
        raise ConfigError(problems)
    return config


def console(config: ServeConfig) -> Watcher:
    """Loading and readiness on standard error, one line per phase and tenth, for people and for `kubectl logs`."""
    shown = ("", 0.0)
    address = ""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def on_progress(progress: messages.Loading) -> None:
        nonlocal shown
        if progress.phase != shown[0] or progress.fraction >= shown[1] + PROGRESS_STEP:
            shown = (progress.phase, progress.fraction)
            say(f"  {progress.fraction:4.0%}  {progress.phase}")

    def on_listening(url: str) -> None:
        nonlocal address
        address = url
        say(f"listening on {url}, loading {config.engine.model_path}")

    def on_ready(ready: messages.Ready) -> None:
        say(ready.plan)
        say(f"ready: {config.model_name} ({ready.model_type}, {ready.max_model_len} tokens of context) at {address}/v1")

    return Watcher(on_progress, on_listening, on_ready)


def _keys(flag: str, given: Sequence[str], in_environment: str | None, file: str | None) -> tuple[str, ...]:
    """All keys of one kind: those of the flag, of the environment, and of the file that `flag`-file names."""
    # Clients cannot send the blanks around a key: HTTP drops them.
    keys = [key.strip() for key in (*given, *filter(None, [in_environment]))]
    if not all(keys):
        raise ConfigError([f"{flag} is empty: give it a key or leave it out"])
    return (*keys, *(() if file is None else _key_file(f"{flag}-file", file)))


def _key_file(flag: str, path: str) -> list[str]:
    if not path:
        raise ConfigError([f"{flag} is empty: name a file or leave it out"])
    try:
        keys = [line.strip() for line in Path(path).read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{flag} {path} cannot be read: {error}"]) from None
    if not keys:
        # An empty file of API keys would otherwise open the server to everyone.
        raise ConfigError([f"{flag} {path} holds no key: write one per line"])
    return keys
