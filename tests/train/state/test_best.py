"""The best weights of a run whose disk is full."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import satrap
from satrap.checkpoint import Series, write_checkpoint
from satrap.errors import CheckpointError
from satrap.train import Checkpointing, Result, Trainer
from satrap.train.progress import running_metrics
from satrap.train.state.best import Best, Save
from tests.support.covering import covering
from tests.support.exact_runs import (
    assert_same,
    everything,
    make_trainer,
    train_data,
    undisturbed,
    validation_data,
)
from tests.support.interruptions import StopAt
from tests.support.trainers import distributed
from tests.train.plain import Batches, make_batches

BESIDE, ANYWHERE = "/best-", "/best"
"""What the places of best weights have in them: those beside the snapshots, and all."""

OVERFITTING: dict[str, Any] = {"patience": 3, "embedding_optimizer": satrap.optim.Adagrad(lr=0.2)}
"""The first three evaluations are each better than the one before, the next three are worse."""


class Disk:
    """Fails to write checkpoints whose place has `full` in it, from the one after `room` of them on."""

    def __init__(self) -> None:
        self.full, self.room, self.refused = "", 0, 0

    def write(self, url: str, *arguments: Any, **options: Any) -> Any:
        if self.full and self.full in url:
            self.room -= 1
            if self.room < 0:
                self.refused += 1
                raise CheckpointError("No space left on device", where=url)
        return write_checkpoint(url, *arguments, **options)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(running_metrics, "WINDOW_SAMPLES", 130)
    monkeypatch.setattr("satrap.train.state.training_state.write_checkpoint", made.write)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield made
    assert list(temporary.glob("satrap-*")) == []


def test_a_warning_comes_when_something_else_has_become_of_the_best_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    best = Best(Series("memory://runs/x"))
    assert (best.place, best.step, best.name) == (None, -1, None)
    offered: list[str] = []

    def save(place: str, error: CheckpointError | None = None) -> Save:
        def saved(places: Iterable[str]) -> tuple[str, CheckpointError | None]:
            offered.extend(places)
            return place, error

        return saved

    full, lost = CheckpointError("no room"), "warning: the best weights could not be saved: "
    assert best.keep(save("memory://runs/x/best-00000007"), 7) == ""
    assert (best.place, best.step, best.name) == ("memory://runs/x/best-00000007", 7, "best-00000007")
    elsewhere = f"{lost}no room; until the run ends they are in /y/best"
    nowhere = f"{lost}no room; the next evaluation counts as the best"
    assert best.keep(save("/y/best", full), 8) == elsewhere
    assert (best.place, best.step, best.name) == ("/y/best", 8, None)
    assert best.keep(save("/y/best", full), 9) == ""
    assert best.keep(save("", full), 10) == nowhere
    assert (best.place, best.step, best.name) == (None, 10, None)
    assert best.keep(save("", full), 11) == ""
    assert best.keep(save("memory://runs/x/best-00000012"), 12) == ""
    assert best.keep(save("", full), 13) == nowhere
    alone = Best()
    assert (
        alone.keep(save(""), 1)
        == f"{lost}there is no temporary folder; the next evaluation counts as the best"
    )
    alone.close()
    first, second, *_ = offered
    assert first == "memory://runs/x/best-00000007"
    assert (Path(second).name, Path(second).parent.parent) == ("best", tmp_path)
    assert offered[3] == second  # one temporary folder for all
    best.resume("best-00000005", 5)
    assert (best.place, best.step, best.name) == ("memory://runs/x/best-00000005", 5, "best-00000005")
    best.resume(None, 6)
    assert (best.place, best.step) == (None, 6)
    best.close()
    assert not Path(second).parent.exists()


def assert_of_its_weights(trainer: Trainer, result: Result) -> None:
    assert trainer.evaluate(validation_data())["auc"] == result.metrics["auc"]


@pytest.mark.parametrize("room", [0, 1])
def test_best_weights_that_find_no_room_beside_the_snapshots_are_kept_elsewhere(
    room: int, disk: Disk, tmp_path: Path
) -> None:
    fit = {"epochs": 20, "validation": validation_data()}
    expected = undisturbed(fit, **OVERFITTING)
    disk.full, disk.room = BESIDE, room
    said: list[str] = []
    trainer = make_trainer(**OVERFITTING)
    result = trainer.fit(train_data(), **fit, checkpoint=Checkpointing(str(tmp_path), 10, notice=said.append))
    assert result.stopped == "patience"
    assert disk.refused > 1
    assert_same(expected, everything(trainer, result))
    trainer.close()
    assert len(said) == 1
    assert "No space left on device" in said[0]


@pytest.mark.parametrize("room", [0, 1])
def test_where_there_is_no_room_at_all_the_present_weights_are_the_result(
    room: int, disk: Disk, tmp_path: Path
) -> None:
    """Also when older ones were kept: they are not the best ones."""
    disk.full, disk.room = ANYWHERE, room
    said: list[str] = []
    trainer = make_trainer(**OVERFITTING)
    plan = Checkpointing(str(tmp_path), 10, notice=said.append)
    result = trainer.fit(train_data(), validation=validation_data(), epochs=4, checkpoint=plan)
    assert (result.stopped, result.steps) == ("epochs", 60)
    assert result.metrics == result.history[-1]
    assert_of_its_weights(trainer, result)
    trainer.close()
    assert len(said) == 1


def test_a_full_temporary_folder_alone_ends_no_run_either(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.full = ANYWHERE
    trainer = make_trainer(**OVERFITTING)
    with pytest.warns(RuntimeWarning, match="No space left"):
        result = trainer.fit(train_data(), validation=validation_data(), epochs=2)
    assert_of_its_weights(trainer, result)
    trainer.close()

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", missing)
    trainer = make_trainer(**OVERFITTING)
    with pytest.warns(RuntimeWarning, match="temporary"):
        result = trainer.fit(train_data(), validation=validation_data(), epochs=2)
    assert_of_its_weights(trainer, result)
    trainer.close()


@pytest.mark.parametrize(
    ("room", "stop", "full"),
    covering([(0, 20), (1, 50), (2, 50)], [BESIDE, ANYWHERE]),
)
def test_a_resumed_run_begins_anew_to_look_for_the_best_weights_that_were_lost(
    full: str, room: int, stop: int, disk: Disk, tmp_path: Path
) -> None:
    """Its best score is the best of what it has seen itself, and its weights are those of that score."""
    plan = Checkpointing(str(tmp_path), notice=lambda _: None)
    fit = {"epochs": 20, "validation": validation_data(), "checkpoint": plan}
    disk.full, disk.room = full, room
    trainer = make_trainer(**OVERFITTING)
    before = trainer.fit(train_data(), **fit, observers=[StopAt(trainer, stop)]).history
    trainer.close()
    disk.full = ""
    trainer = make_trainer(**OVERFITTING)
    result = trainer.fit(train_data(), **fit, resume=True)
    assert result.metrics["auc"] == max(metrics["auc"] for metrics in result.history[len(before) :])
    assert result.history[-1]["auc"] < result.metrics["auc"]
    assert_of_its_weights(trainer, result)
    trainer.close()


@pytest.mark.cluster
@pytest.mark.parametrize("full", ["", ANYWHERE])
def test_all_workers_decide_alike(full: str, disk: Disk) -> None:
    disk.full = full
    expected = pytest.warns(RuntimeWarning, match="No space left") if full else nullcontext()
    parts = [make_batches(10, size=16, seed=rank) for rank in range(2)]
    held = [make_batches(8, size=16, seed=50 + rank) for rank in range(2)]
    with expected as said:
        answers = distributed(
            2,
            1,
            lambda rank: Batches(parts[rank]),
            lambda rank: Batches(held[rank]),
            mode="sync",
            patience=1,
            epochs=6,
            embedding_optimizer=satrap.optim.Adagrad(lr=0.5),
        )
    assert {answer.result.stopped for answer in answers} == {"epochs" if full else "patience"}
    assert answers[0].digest == answers[1].digest
    assert answers[0].result.metrics == answers[1].result.metrics
    assert said is None or len(said) == 1
