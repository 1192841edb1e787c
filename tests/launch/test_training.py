"""What becomes of a run that is asked to end before it has begun, and what is said of one that begins."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from satrap import launch
from satrap.config import load
from satrap.data import hash_ids
from satrap.errors import DataError
from satrap.train import Trainer
from tests.launch.runs import RECIPE, make_recipe


@pytest.mark.cluster
def test_sigterm_before_the_first_step_leaves_no_folder(tmp_path: Path) -> None:
    recipe, output = make_recipe(tmp_path, RECIPE), tmp_path / "run"
    command = [sys.executable, "-m", "tests.launch.stopped", recipe, output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "nothing was saved" in done.stdout
    assert not output.exists()


def test_notices(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE + "about: {md5: {rows.csv: '0'}}\n"), ["training.steps=1"])
    said: list[str] = []
    launch.train(recipe, str(tmp_path / "run"), notice=said.append)
    assert len(said) == 2
    assert "rows.csv differs from the file of the figures in the recipe" in said[0]


VECTORS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


def pretrained(folder: Path, weights: np.ndarray = VECTORS) -> Path:
    np.savez(folder / "vectors.npz", id=np.arange(20), weights=weights)
    return make_recipe(folder, RECIPE + "tables: {item: {rows: vectors.npz, frozen: true}}\n")


def test_a_frozen_table_has_the_rows_of_its_file_before_and_after(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = launch.train(load(pretrained(tmp_path)), str(tmp_path / "run"), notice=said.append)
    assert said[0] == "table item: 20 rows from vectors.npz, frozen"
    (tmp_path / "vectors.npz").unlink()
    with closing(Trainer.load(str(outcome.folder))) as trainer:
        rows, found = trainer.exchange.shard.peek("item", hash_ids(np.arange(21)))
        assert found.tolist() == [True] * 20 + [False]
        assert rows[:20].tobytes() == VECTORS.tobytes()
        assert not rows[20].any()
        assert trainer.statistics().tables["item"].rows == 20
    assert launch.evaluate(outcome.folder)["auc"] == pytest.approx(outcome.test["auc"])


def test_a_file_that_does_not_fit_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the rows have 3 weights, but table 'item' has 4"):
        launch.train(load(pretrained(tmp_path, VECTORS[:, :3])), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
