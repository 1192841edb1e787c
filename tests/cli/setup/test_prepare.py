"""`satrap prepare`, as users call it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from satrap.cli.setup import prepare as module
from satrap.tools.prepare import PrepareProgress
from tests.cli.command import SATRAP, satrap
from tests.launch.runs import RECIPE, frame

TSV = (
    RECIPE.replace("rows.csv", "rows.tsv")
    .replace("batch_size: 100", "batch_size: 100\n  shuffle: false\n  columns: [user, item, price, clicked]")
    .replace("mode: hybrid, staleness: 2, staleness_warmup: 0", "mode: sync")
)


def make(folder: Path, rows: pd.DataFrame) -> Path:
    """Write a TSV without a header line and its recipe."""
    rows.to_csv(folder / "rows.tsv", sep="\t", header=False, index=False)
    path = folder / "raw.yaml"
    path.write_text(TSV, encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/*.parquet"))}


def model(run: Path) -> dict[str, bytes]:
    """Return the trained weights and rows, without the random name of their folder."""
    return {path.name: path.read_bytes() for path in (run / "model").glob("data-*/*")}


def test_training_from_prepared_files_gives_the_same_model(tmp_path: Path) -> None:
    recipe, out = make(tmp_path, frame(1000)), tmp_path / "out"
    answer = satrap("prepare", recipe, "--output", out, "--processes", 1)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"{out}: 1,000 rows in 1 file, ")
    assert answer.out.endswith(f"next:\n  satrap train {out}/recipe.yaml\n")
    for name, source in (("raw", recipe), ("prepared", out / "recipe.yaml")):
        answer = satrap("train", source, "--output", tmp_path / name)
        assert answer.code == 0, answer.err
    assert len(model(tmp_path / "raw")) >= 4
    assert model(tmp_path / "raw") == model(tmp_path / "prepared")
    files = [str(tmp_path / "rows.tsv"), str(out / "train" / "*.parquet")]
    for run, source in zip(("prepared", "raw"), files, strict=True):  # each scores the other's rows
        target = tmp_path / f"{run}.csv"
        answer = satrap("predict", tmp_path / run, "--input", source, "--output", target)
        assert answer.code == 0, answer.err
    one, other = (pd.read_csv(tmp_path / f"{run}.csv")["clicked_probability"] for run in ("raw", "prepared"))
    assert np.abs(one - other).max() < 1e-6


def test_a_bad_line_and_a_bad_folder(tmp_path: Path) -> None:
    rows = frame(200).astype(str)
    rows.loc[120, "price"] = "cheap"
    recipe = make(tmp_path, rows)
    answer = satrap("prepare", recipe, "--output", tmp_path / "out", "--processes", 1)
    answer.assert_refused("value 'cheap' is not a number", f"{tmp_path}/rows.tsv, row 121, column 'price'")
    answer = satrap("prepare", recipe, "--output", tmp_path, "--processes", 1)
    answer.assert_refused("the output folder is not empty, and satrap prepare did not write it")


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    import fcntl

    recipe = make(tmp_path, frame(200))
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = satrap("prepare", recipe, "--output", tmp_path / "out", "--processes", 1)
    answer.assert_refused("another satrap prepare is using the output folder")


@pytest.mark.cluster
def test_two_kills_change_no_byte(tmp_path: Path) -> None:
    recipe = make(tmp_path, pd.concat([frame(2000)] * 250))
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert satrap("prepare", recipe, "--output", whole, "--processes", 1, "--files", 8).code == 0
    expected = contents(whole)
    assert len(expected) >= 7
    command = [SATRAP, "prepare", recipe, "--output", out, "--processes", "2", "--files", "8"]
    for done in (1, 3):
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(list(out.glob("*/*.parquet"))) < done:
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        process.kill()
        process.communicate()
        assert not (out / "recipe.yaml").exists()
    left = contents(out)
    assert left.items() <= expected.items()
    answer = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    assert "500,000 rows" in answer.stdout
    assert contents(out) == expected
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()
    assert (out / "recipe.yaml").read_bytes() == (whole / "recipe.yaml").read_bytes()
    assert not list(out.glob("*.part"))


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 10.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with module._Line() as line:
        line(PrepareProgress(1000, 2_000_000_000, None))
        now = 12.0
        line(PrepareProgress(3000, 3_000_000_000, 4_000_000_000))
        line(PrepareProgress(4000, 5_000_000_000, 4_000_000_000))
        line.say("a warning")
    clear, end = "\x1b[K", "\r\x1b[K"
    first = f"\r1,000 rows, 2.00 GB read{clear}"
    second = f"\r 75%  3,000 rows, 3.00 GB read, 500 MB/s{clear}"
    third = f"\r100%  4,000 rows, 5.00 GB read, 1,500 MB/s{clear}"
    assert capsys.readouterr().err == f"{first}{second}{third}{end}a warning\n{end}"


def test_no_progress_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with module._Line() as line:
        line(PrepareProgress(1000, 2_000_000_000, None))
        line.say("a warning")
    assert capsys.readouterr().err == "a warning\n"
