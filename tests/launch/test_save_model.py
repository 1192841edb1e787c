"""A disk that is full at the end of training does not cost the result."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from satrap.errors import CheckpointError
from satrap.launch import fit
from satrap.launch.build import make_trainer as make_trainer_of_recipe
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.save_model import save_model
from satrap.train import Trainer
from tests import faults
from tests.cli.command import satrap
from tests.disks import fill, small_disk
from tests.launch.runs import RECIPE, make_recipe
from tests.support.exact_runs import make_trainer, train_data

FULL = faults.fail(lambda: OSError(28, "No space left on device"))


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = make_trainer()
    made.fit(train_data())
    yield made
    made.close()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("at", [1, 2, 5])
def test_the_model_is_kept_elsewhere_and_the_error_says_where(
    at: int, trainer: Trainer, tmp_path: Path, temporary: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    with faults.armed("disk.*", FULL, at=at), pytest.raises(CheckpointError) as caught:
        save_model(trainer, folder)
    kept = Path(re.findall(r"another place: (\S+)", caught.value.why)[0])
    assert temporary in kept.parents
    subprocess.run(caught.value.fix.partition("then: ")[2], shell=True, check=True)  # as the user does
    again = Trainer.load(str(folder.model), model=trainer.model)
    for (_, one), (_, other) in zip(
        trainer.exchange.rows.cut(still=True), again.exchange.rows.cut(still=True), strict=True
    ):
        assert one.weights.tobytes() == other.weights.tobytes()
    again.close()


def test_nothing_is_left_elsewhere_where_all_is_well(
    trainer: Trainer, tmp_path: Path, temporary: Path
) -> None:
    save_model(trainer, RunFolder(tmp_path / "run"))
    assert list(temporary.iterdir()) == []


def test_with_no_place_at_all_the_error_says_what_there_is(
    trainer: Trainer, tmp_path: Path, temporary: Path
) -> None:
    with faults.armed("disk.create", FULL, every=1), pytest.raises(CheckpointError) as caught:
        save_model(trainer, RunFolder(tmp_path / "run"))
    assert "No space left" in caught.value.what
    assert "train again" in caught.value.fix
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("full", [False, True])
def test_without_a_temporary_folder(
    full: bool, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "mkdtemp", missing)
    folder = RunFolder(tmp_path / "run")
    if not full:
        save_model(trainer, folder)
        Trainer.load(str(folder.model), model=trainer.model).close()
        return
    with faults.armed("disk.create", FULL, every=1), pytest.raises(CheckpointError) as caught:
        save_model(trainer, folder)
    assert "No space left" in caught.value.what


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread
@pytest.mark.parametrize("patience", ["null", "2"])
def test_a_run_on_a_disk_that_becomes_full(patience: str, tmp_path: Path) -> None:
    """Its last kilobytes go when training begins: history, snapshots, best weights and model find no room."""
    recipe = make_recipe(
        tmp_path,
        RECIPE.replace("epochs: 2", f"epochs: 2, patience: {patience}") + "checkpoint: {every_steps: 10}\n",
    )
    with small_disk(tmp_path / "disk") as disk:
        run, ballast = disk / "run", disk / "ballast"
        with mock.patch.object(fit, "make_trainer", filling(ballast)):
            answer = satrap("train", recipe, "--output", run)
        answer.assert_refused("the trained model could not be saved in the run folder", code=1)
        assert "No space left on device" in answer.err
        assert "the history of metrics has gaps" in answer.err
        assert answer.err.count("the best weights could not be saved") == (patience != "null")
        ballast.unlink()
        subprocess.run(re.findall(r"then: (.*)", answer.err)[0], shell=True, check=True)  # as the user does
        assert satrap("evaluate", run, "--json").code == 0


def filling(ballast: Path) -> Any:
    """Return `make_trainer` that first takes all room of the disk."""

    def make(*arguments: Any) -> Trainer:
        trainer = make_trainer_of_recipe(*arguments)
        fill(ballast)
        return trainer

    return make
