"""A typo on the command line is answered in one line that names it, and the word that was meant where it can be guessed."""

import pytest

from paceline_compat.__main__ import main
from paceline_compat.commands.parser import Parser


def _parser():
    parser = Parser(prog="p")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--ratio", type=float)
    parser.add_argument("--kind", choices=["one", "two"])
    parser.add_argument("folder", nargs="?")
    return parser


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--modle", "x"], "there is no --modle, did you mean --model?"),
        (["--modle=x"], "there is no --modle, did you mean --model?"),
        (["-model", "x"], "there is no -model, did you mean --model?"),
        (["--mod", "x"], "there is no --mod, did you mean --model?"),
        (["--xyz", "--prot", "5"], "there is no --xyz; there is no --prot, did you mean --port?"),
        (["--model", "x", "--port", "abc"], "argument --port: must be a whole number, not 'abc'"),
        (["--model", "x", "--ratio", "abc"], "argument --ratio: must be a number, not 'abc'"),
        (["--model", "x", "--kind", "three"], "argument --kind: invalid choice: 'three' (choose from"),
        ([], "the following arguments are required: --model"),
        (["--model"], "argument --model: expected one argument"),
    ],
    ids=" ".join,
)
def test_a_typo_is_told_in_a_line(capsys, words, said):
    """Not after a page of usage; status 2."""
    with pytest.raises(SystemExit, match="2"):
        _parser().parse_args(words)
    output = capsys.readouterr()

    assert output.err.startswith(f"p: {said}")
    assert output.err.endswith(" ('p --help' lists all there is)\n")
    assert (1, "") == (output.err.count("\n"), output.out)


@pytest.mark.parametrize(
    ("words", "port", "ratio", "folder"),
    [
        (["--port", "-5"], -5, None, None),
        (["--ratio", "-.5"], None, -0.5, None),
        (["--", "--modle"], None, None, "--modle"),
        (["-- modle"], None, None, "-- modle"),
        (["-"], None, None, "-"),
    ],
)
def test_what_is_no_flag_is_taken_for_none(words, port, ratio, folder):
    """Numbers below zero, texts, and all that follows two dashes."""
    args = _parser().parse_args(["--model", "x", *words])

    assert ("x", port, ratio, folder) == (args.model, args.port, args.ratio, args.folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "--tarket", "x"], "paceline check: there is no --tarket, did you mean --target?"),
        (["plan", "--model", "x", "--memroy", "1GiB"], "paceline plan: there is no --memroy, did you mean --memory?"),
        (["chek"], "paceline: argument COMMAND: invalid choice: 'chek'"),
    ],
)
def test_commands_say_whose_flag_is_not_known(capsys, words, said):
    """The command is part of the name."""
    with pytest.raises(SystemExit, match="2"):
        main(words)

    assert capsys.readouterr().err.startswith(said)
