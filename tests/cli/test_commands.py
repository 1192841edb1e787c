import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import satrap as package
from satrap.cli.commands import _internal_error
from tests.cli.command import SATRAP, satrap
from tests.launch.runs import make_recipe


def test_help_lists_the_commands_that_exist() -> None:
    answer = satrap("--help")
    assert answer.code == 0
    commands = [line.split()[0] for line in answer.out.partition("Commands:\n")[2].splitlines()]
    assert commands == [
        "quickstart",
        "init",
        "prepare",
        "train",
        "tune",
        "evaluate",
        "predict",
        "serve",
        "request",
        "versions",
        "bench",
        "export",
        "report",
        "compare",
        "config",
        "models",
        "plan",
        "doctor",
        "compile",
        "deploy",
        "checkpoint",
        "key",
        "serve-shard",
        "shard",
        "shards",
        "workers",
        "loader",
        "embedding-worker",
    ]
    for command in commands:
        assert satrap(command, "--help").code == 0


def test_version() -> None:
    assert satrap("--version").out == f"satrap {package.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["trian"], ["train"], ["train", "--no-such-option"], ["predict", "x"], ["--set", "a=b"], []]
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    answer = satrap(*arguments)
    assert answer.code == 2
    assert answer.err
    assert "Traceback" not in answer.err


def test_help_and_config_do_not_import_torch(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    script = (
        "import json, sys\nfrom satrap.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try: main(words)\n    except SystemExit as e: assert not e.code\n"
        "    assert not {'torch', 'numba', 'pyarrow', 'pandas'} & set(sys.modules), words"
    )
    commands = json.dumps([["--help"], ["config", str(recipe)], ["config", "--keys"]])
    subprocess.run([sys.executable, "-c", script, commands], check=True, capture_output=True, timeout=250)


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    for arguments in (["--debug", "config", tmp_path / "no"], ["config", tmp_path / "no", "--debug"]):
        answer = satrap(*arguments)
        assert answer.code == 2
        assert "Traceback" in answer.err
        assert "error: cannot read the recipe" in answer.err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """It has gone before a word is written."""
    command = [SATRAP, "config", make_recipe(tmp_path)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=250, check=False
        )
    assert done.stderr == ""
    assert done.returncode == 1


def test_a_defect_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    _internal_error(KeyError, KeyError("x"), None)
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "error: internal error: KeyError: 'x'",
        "  what to do: run again with --debug and report the traceback",
    ]
