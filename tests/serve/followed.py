"""A run that has left snapshots of several steps, to be followed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from satrap import launch
from satrap.checkpoint import Series
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.config import load
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve.scoring.model import ServedModel
from satrap.train import Predictor
from tests.serve.served import RECIPE, frame
from tests.support.snapshots import written_at_once


def run_with_snapshots(folder: Path, recipe: str = RECIPE) -> RunFolder:
    """Train a run that leaves snapshots of some steps; all but the first are deltas."""
    frame().to_parquet(folder / "rows.parquet")
    every = ["checkpoint.every_steps=999", "checkpoint.delta_every_steps=2"]
    (folder / "books.yaml").write_text(recipe, encoding="utf-8")
    with written_at_once():
        launch.train(load(folder / "books.yaml", ["training.epochs=5", *every]), str(folder / "books"))
    return RunFolder.open(folder / "books")


def steps(trained: RunFolder) -> list[int]:
    """Return the steps of its first snapshots."""
    return Series(str(trained.checkpoints)).steps()[:4]


def snapshot(trained: RunFolder, step: int, *, known: bool = False, keep: int = 0) -> ServedModel:
    """Return the model of a step; with `known` it can be updated by the deltas after it, and keeps some."""
    place = Series(str(trained.checkpoints)).place(step)
    version = read_manifest(Storage(place)).id if known else ""
    return ServedModel("books", load_predictor(trained, trained.recipe(), place), version=version, keep=keep)


def beginning(run: RunFolder, folder: Path, place: str) -> tuple[Path, list[Path]]:
    """Copy a run with the first of its versions only, in `checkpoints` or `feed`, and without its model.

    Returns:
        Its folder, and the later versions, which lie aside.
    """
    copied = Path(shutil.copytree(run.path, folder / run.path.name))
    shutil.rmtree(copied / "model")
    series = Series(str(copied / place))
    later = [Path(series.place(step)) for step in series.steps()[1:]]
    return copied, [Path(shutil.move(one, folder / one.name)) for one in later]


def appear(version: Path, place: Path) -> None:
    """Put a version that lies aside to its place, at once."""
    version.rename(place / version.name)


class Appearing(Series):
    """The snapshots of a run, up to a step."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.newest = super().steps()[0]

    def latest(self) -> int | None:
        return self.newest

    def steps(self) -> list[int]:
        return [step for step in super().steps() if step <= self.newest]


def expected(trained: RunFolder, rows: pd.DataFrame) -> dict[int, Any]:
    """The scores of the steps of its first snapshots."""
    return scores_of(Series(str(trained.checkpoints)), steps(trained), rows)


def scores_of(series: Series, steps: list[int], rows: pd.DataFrame) -> dict[int, Any]:
    """The scores of each step, by a predictor of its own."""
    from satrap.data import read

    found = {}
    for step in steps:
        predictor = Predictor.load(series.place(step))
        data = read(rows, predictor.schema.without_labels(), batch_size=len(rows))
        found[step] = predictor.predict(data)[:, 0]
        predictor.close()
    return found


def eventually(check: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < until
        time.sleep(0.01)
