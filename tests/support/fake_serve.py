"""`serve` as a command, with a scripted engine: `python fake_serve.py FACTORY [the flags of paceline serve]`.

Both processes are real, and so are their signals and exit statuses; the engine process imports `fake_engine`.
"""

import argparse
import asyncio
import logging
import sys

from byte_tokenizer import load_byte_tokenizer

from paceline_runtime.server.command import add_arguments, console, serve_config
from paceline_runtime.server.lifecycle import serve


def main() -> int:
    """The exit status of the server."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    factory, *flags = sys.argv[1:]
    config = serve_config(parser.parse_args(["--port", "0", "--served-model-name", "fake", *flags]))
    logging.basicConfig(level="ERROR")
    return asyncio.run(serve(config, console(config), f"fake_engine:{factory}", load_byte_tokenizer))


if __name__ == "__main__":
    sys.exit(main())
