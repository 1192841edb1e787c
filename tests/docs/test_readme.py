"""What the README and the page of all commands show works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.command import satrap
from tests.cli.serving import started
from tests.docs.page import follow

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
ROWS = 3000
LONG = ("--simulate", "satrap quickstart")
"""Take minutes: `tests/cli/setup` runs them with fewer steps and rows."""

pytestmark = pytest.mark.cluster


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", COMMANDS, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def ratings() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    user, movie = rng.integers(0, 40, ROWS), rng.integers(0, 20, ROWS)
    return pd.DataFrame(
        {
            "userId": user,
            "movieId": movie,
            "genres": rng.choice(["Drama", "Drama|Comedy", "War"], ROWS),
            "rating": np.where(rng.random(ROWS) < 0.1, 3.0, 3.0 + (user + movie) % 2),
        }
    )


def test_the_readme(begun: Path, tmp_path: Path) -> None:
    shutil.copy(begun / "clicks.csv", tmp_path)
    follow(ROOT / "README.md", tmp_path)
    assert (tmp_path / "runs" / "books").is_dir()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = ratings()
    clicks = frame.assign(clicked=(frame["rating"] >= 4).astype(int)).drop(columns="rating")
    clicks.to_csv("clicks.csv", index=False)
    (tmp_path / "data").mkdir()
    frame[600:].to_parquet("data/train.parquet")
    frame[:600].to_parquet("data/test.parquet")
    frame[:100].drop(columns="rating").to_parquet("new.parquet")
    lines = [line for block in blocks("") for line in block.splitlines() if line.startswith("satrap ")]
    commands = [
        shlex.split(line, comments=True)[1:] for line in lines if not any(word in line for word in LONG)
    ]
    assert len(commands) == len(lines) - len(LONG)
    assert {"init", "train", "report", "evaluate", "predict", "serve", "config", "doctor", "plan"} <= {
        c[0] for c in commands
    }
    for command in commands:
        if command[0] == "train" and "--set" in command:  # from here on, the recipe that the page shows
            (tmp_path / "recipe.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
        if command[0] == "serve":  # until it is told to end
            with started(*command[1:], "--listen", "127.0.0.1:0") as (server, _):
                server.terminate()
                assert server.wait(60) == 0
            continue
        answer = satrap(*command)
        assert answer.code == 0, (command, answer.err)
    assert (tmp_path / "runs" / "first" / "report.html").exists()
    assert len(pd.read_parquet("scores.parquet")) == 100
