"""Flags, files and environment of the `paceline` command: what they become, and what is said about wrong ones."""

import argparse
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_compat.memory.machines import budget_bytes
from paceline_runtime import cli, env
from paceline_runtime.config import EngineConfig, ServeConfig
from paceline_runtime.errors import ConfigError
from paceline_runtime.flags import size_bytes
from paceline_runtime.server.command import add_arguments, serve_config

NOT_IN_THE_CONFIG = {"-h", "--help", "--model", "--api-key-file", "--admin-key-file"}
"""Asked for help, given by `configured`, read into the keys."""


def configured(*flags: str, model: str = "/models/tiny.gguf") -> ServeConfig:
    """What `paceline serve` would run with."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return serve_config(parser.parse_args(["--model", model, *flags]))


def test_defaults_of_the_flags_are_the_defaults_of_the_config() -> None:
    """One truth: a script and the command line run the same engine."""
    assert configured() == ServeConfig(engine=EngineConfig(model_path="/models/tiny.gguf"))


def test_every_flag_reaches_the_config() -> None:
    """None is parsed and forgotten."""
    flags = {
        "--dtype": "float32",
        "--device": "cpu",
        "--max-model-len": "100",
        "--threads": "2",
        "--tiles": "/own.json",
        "--seed": "7",
        "--speculative-algorithm": "dflash",
        "--speculative-num-steps": "5",
        "--decode-prefill-tokens": "128",
        "--num-state-slots": "44",
        "--keepalive-s": "2",
        "--max-body-bytes": "1MiB",
        "--speculative-draft-model-path": "/draft",
        "--max-running-requests": "9",
        "--max-prefill-tokens": "512",
        "--num-pages": "33",
        "--memory-bytes": "2GiB",
        "--memory-ratio": "0.5",
        "--cache-type": "naive",
        "--host": "::1",
        "--port": "9000",
        "--served-model-name": "mine",
        "--api-key": "secret",
        "--admin-key": "higher",
        "--drain-timeout-s": "3",
        "--log-level": "error",
    }
    switches = ["--disable-overlap", "--disable-cuda-graphs", "--dummy-weights", "--speculative-adaptive"]
    config = configured(*(word for pair in flags.items() for word in pair), *switches)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    known = {name for action in parser._actions for name in action.option_strings}

    assert known - NOT_IN_THE_CONFIG == {*flags, *switches}
    assert config == ServeConfig(
        engine=EngineConfig(
            model_path="/models/tiny.gguf",
            dtype="float32",
            device="cpu",
            max_model_len=100,
            threads=2,
            tiles="/own.json",
            seed=7,
            speculative_algorithm="dflash",
            speculative_num_steps=5,
            speculative_draft_model_path="/draft",
            max_running_req=9,
            speculative_adaptive=True,
            max_prefill_tokens=512,
            decode_prefill_tokens=128,
            num_state_slots=44,
            num_pages=33,
            memory_bytes=2 * 2**30,
            memory_ratio=0.5,
            cache_type="naive",
            overlap=False,
            cuda_graphs=False,
            dummy_weights=True,
        ),
        host="::1",
        port=9000,
        served_model_name="mine",
        api_keys=("secret",),
        admin_keys=("higher",),
        drain_timeout_s=3.0,
        keepalive_s=2.0,
        max_body_bytes=2**20,
        log_level="error",
    )


def test_all_wrong_values_are_named_at_once() -> None:
    """By the flags that hold them."""
    flags = ["--max-model-len", "0", "--memory-ratio", "2", "--port", "70000", "--speculative-num-steps", "3"]
    with pytest.raises(ConfigError) as caught:
        configured(*flags)
    said = " ".join(caught.value.problems)

    assert len(caught.value.problems) == 4
    assert all(flag in said for flag in flags if flag.startswith("--"))


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--speculative-algorithm", "dflash"], "--speculative-draft-model-path"),
        (["--speculative-algorithm", "ngram", "--speculative-draft-model-path", "/d"], "choose dflash"),
        (["--speculative-draft-model-path", "/d"], "choose dflash"),
        (["--speculative-adaptive"], "drop it or choose one"),
        (["--max-prefill-tokens", "63"], "at least 64"),
        (["--decode-prefill-tokens", "63"], "at least 64"),
        (["--decode-prefill-tokens", "4096"], "at most --max-prefill-tokens"),
        (["--max-model-len", "1"], "at least 2"),
        (["--keepalive-s", "0"], "above 0"),
        (["--api-key", " "], "--api-key is empty"),
        (["--api-key-file", "/nowhere"], "cannot be read"),
        (["--api-key-file", ""], "--api-key-file is empty"),
        (["--admin-key", " "], "--admin-key is empty"),
        (["--admin-key-file", "/nowhere"], "--admin-key-file /nowhere cannot be read"),
        (["--admin-key-file", ""], "--admin-key-file is empty"),
        (["--admin-key", "same", "--api-key", "same"], "a key of its own"),
        (["--host", ""], "--host is empty"),
        (["--threads", "100000"], "at most 1024"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_contradict_each_other_are_refused(flags: list[str], remedy: str) -> None:
    """With a way out."""
    with pytest.raises(ConfigError, match=remedy):
        configured(*flags)


KINDS_OF_KEYS = pytest.mark.parametrize("kind", ["api", "admin"])


@KINDS_OF_KEYS
def test_keys_come_from_flags_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """All of them count; blank lines do not, nor blanks around a key, nor what some editors put before a file's text."""
    file = tmp_path / "keys"
    file.write_text("third\n\n  fourth \n", "utf-8-sig")
    monkeypatch.setenv(f"PACELINE_{kind.upper()}_KEY", "second")
    config = configured(f"--{kind}-key", " first\n", f"--{kind}-key-file", str(file))
    keys = {"api": config.api_keys, "admin": config.admin_keys}

    assert ("first", "second", "third", "fourth") == keys.pop(kind)
    assert [()] == [*keys.values()]


@KINDS_OF_KEYS
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_key_file_without_a_key_does_not_open_the_server(tmp_path: Path, text: str, kind: str) -> None:
    """A secret that is not filled in yet must not mean that everyone may ask."""
    file = tmp_path / "keys"
    file.write_text(text)

    with pytest.raises(ConfigError, match=f"--{kind}-key-file .* holds no key"):
        configured(f"--{kind}-key-file", str(file))


@pytest.mark.parametrize("name", [env.API_KEY, env.ADMIN_KEY])
def test_an_empty_key_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Likewise."""
    monkeypatch.setenv(name, "")

    with pytest.raises(ConfigError, match=name):
        configured()


@pytest.mark.parametrize(
    ("path", "name"),
    [("/models/Qwen3-8B", "Qwen3-8B"), ("/models/Qwen3-8B/", "Qwen3-8B"), ("smol.Q4_1.gguf", "smol.Q4_1")],
)
def test_a_model_is_called_after_its_path(path: str, name: str) -> None:
    """Unless it is given a name."""
    assert configured(model=path).model_name == name
    assert configured("--served-model-name", "mine", model=path).model_name == "mine"


@given(st.integers(0, 2**40), st.sampled_from("kmgtKMGT"))
def test_sizes_have_the_units_of_kubernetes(number: int, unit: str) -> None:
    """Decimal ones, and with an i binary ones; `paceline plan` reads the same."""
    power = 1 + "kmgt".index(unit.lower())
    for suffix in (unit, f"{unit}B"):
        assert size_bytes(f"{number}{suffix}") == budget_bytes(f"{number}{suffix}", 0.9) == number * 1000**power
    for suffix in (f"{unit}i", f"{unit}iB"):
        assert size_bytes(f"{number}{suffix}") == budget_bytes(f"{number}{suffix}", 0.9) == number << 10 * power
    assert size_bytes(str(number)) == number


def test_a_shortened_flag_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """What is forbidden by its name is not let in by half of it, and a later flag changes no script's meaning."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plan", "--model", "here", "--memory", "1GiB", "--max-runn", "3"])

    assert "paceline plan: there is no --max-runn, did you mean --max-running-requests?" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "G", "16X", "1e400G", "sixteen", "-1G", "1.5.2G"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    """By argparse, with the flag's name."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        size_bytes(text)


@pytest.mark.parametrize("name", cli.MODULES)
def test_every_command_that_is_listed_exists(name: str) -> None:
    """Its module can be imported and takes arguments."""
    module = importlib.import_module(cli.MODULES[name])
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)

    assert callable(module.run)
    assert len(parser.format_help().splitlines()) > 3


def test_help_lists_exactly_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """None hidden, none missing."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = set(re.findall(r"^ {4}(\w+)", capsys.readouterr().out, re.MULTILINE))

    assert listed == set(cli.MODULES)


def test_a_wrong_start_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, one line for each problem."""
    status = cli.main(["serve", "--model", "x", "--num-pages", "-1", "--threads", "0"])

    assert status == cli.EXIT_USAGE
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["paceline serve"] * 2


def test_a_command_without_its_packages_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command comes with every install of the package, what most subcommands need only with an extra."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "paceline_runtime.server.command")
    monkeypatch.delitem(sys.modules, "paceline_runtime.server.lifecycle")

    assert cli.main(["serve", "--model", "x"]) == cli.EXIT_USAGE
    assert "paceline serve: uvicorn is not installed: pip install 'paceline[runtime]'" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output", ["/dev/full", "pipe"])
def test_an_answer_that_nobody_gets_is_not_taken_for_one(output: str, unbuffered: str) -> None:
    """Status 1 of `check` means that a pair does not fit; a reader that has left or a full disk is told, in one line."""
    reader, writer = os.pipe()
    os.close(reader)
    if output != "pipe":
        os.close(writer)
        writer = os.open(output, os.O_WRONLY)
    command = [sys.executable, "-m", "paceline_runtime", "check", "--target", "/nowhere"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    os.close(writer)

    assert result.returncode == cli.EXIT_USAGE
    assert re.fullmatch(r"paceline check: (nobody reads the output|\[Errno 28\]).*\n", result.stderr)


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells' status for it."""

    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline_compat.commands.check.run", interrupted)

    assert cli.main(["check", "--target", "here"]) == cli.EXIT_INTERRUPTED


def test_the_module_is_the_command() -> None:
    """`python -m paceline_runtime` works where the console script is not on the path."""
    result = subprocess.run([sys.executable, "-m", "paceline_runtime", "--help"], capture_output=True, text=True, check=True)

    assert "usage: paceline" in result.stdout
