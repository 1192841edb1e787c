"""Going on from a snapshot gives the bytes of a run that was never disturbed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.batch import Batch
from satrap.checkpoint import Series
from satrap.errors import ConfigError, DataError
from satrap.exchange import LocalExchange
from satrap.store import Changes, Delta
from satrap.train import Checkpointing, Observer, Progress, Result, Trainer
from satrap.train.state.snapshots import _check_same
from tests import faults
from tests.support.covering import covering
from tests.support.exact_runs import (
    BATCH,
    EPOCHS,
    STEPS,
    assert_same,
    columns,
    everything,
    killed_and_resumed,
    make_trainer,
    schema,
    train_data,
    undisturbed,
    validation_data,
)
from tests.support.interruptions import KillAt, KilledError, StopAt
from tests.train.plain import Batches, make_batches

pytestmark = pytest.mark.usefixtures("at_once")


SMALL: dict[str, Any] = {
    "memory": 107_500,
    "admission": satrap.store.Admission(min_count=2, probability=0.8, memory=256),
}
"""Room for some of the rows."""
EVICTING = SMALL | {"eviction": satrap.store.Eviction("lru")}


QUICK = {
    ("sync", 0, 0): [(7, 9), (15, 16), (30, 44)],
    ("hybrid", 4, 0): [(7, 9), (15, 16), (14, 15), (16, 17)],
}
"""Of all schedules and kills: those of the end of a pass with lookups in flight, and some others."""


@pytest.mark.parametrize(
    ("mode", "staleness", "warmup", "every", "kill"),
    [
        pytest.param(*schedule, *kill, marks=() if kill in QUICK.get(schedule, []) else pytest.mark.slow)
        for schedule in (("sync", 0, 0), ("hybrid", 1, 0), ("hybrid", 4, 0), ("hybrid", 4, 40))
        for kill in ((7, 9), (15, 16), (14, 15), (16, 17), (30, 44), (1, 38))
    ],
)
def test_resumed_equals_undisturbed(
    mode: str, staleness: int, warmup: int, every: int, kill: int, tmp_path: Path
) -> None:
    """Within a pass, at its last step, one before, one after; batch norm, dropout, validation each pass."""
    fit = {"epochs": EPOCHS, "validation": validation_data()}
    arguments: dict[str, Any] = {"mode": mode, "staleness": staleness, "plateau": 0.5}
    arguments["staleness_warmup"] = warmup
    expected = undisturbed(fit, **arguments)
    assert expected["counts"][0] == STEPS * EPOCHS
    assert_same(expected, killed_and_resumed(tmp_path, every, kill, fit, **arguments))


@pytest.mark.parametrize(("every", "delta", "kill"), [(20, 3, 19), (20, 3, 29), (100, 4, 38), (15, 5, 31)])
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_resumed_from_deltas_equals_undisturbed(
    every: int, delta: int, kill: int, dtype: str, tmp_path: Path
) -> None:
    fit = {"epochs": EPOCHS, "validation": validation_data()}
    arguments: dict[str, Any] = {"mode": "hybrid", "staleness": 2, "embedding_dtype": dtype}
    left = killed_and_resumed(tmp_path, every, kill, fit, delta, **arguments)
    assert_same(undisturbed(fit, **arguments), left)


def test_a_delta_that_fails_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    """Full at 3 by want of anything to follow, deltas at 6, 9 (fails) and 12, then killed."""
    told: list[str] = []
    plan = Checkpointing(str(tmp_path), None, 2, told.append, 3)
    trainer = make_trainer()
    failing = faults.armed("checkpoint.data_written", faults.fail(lambda: OSError(28, "no space")), at=3)
    with failing, pytest.raises(KilledError):
        trainer.fit(train_data(), epochs=1, checkpoint=plan, observers=[KillAt(14)])
    trainer.close()
    assert [("no space" in text) for text in told] == [True]
    series = Series(str(tmp_path))
    assert series.steps() == [3, 6, 12]
    links = [series.manifest(step).delta for step in series.steps()]
    assert [link and (link.number, link.previous) for link in links] == [
        None,
        (1, "step-00000003"),
        (2, "step-00000006"),
    ]
    again = make_trainer()
    left = everything(again, again.fit(train_data(), epochs=1, checkpoint=plan, resume=True))
    again.close()
    assert_same(undisturbed({"epochs": 1}), left)


SURPRISES: list[type[BaseException]] = [MemoryError, RuntimeError, KeyError, SystemExit]


@pytest.mark.parametrize(("raised", "point"), covering(SURPRISES, ["data_written", "committed", "pruned"]))
def test_whatever_is_raised_in_a_delta_no_change_is_lost(
    point: str, raised: type[BaseException], tmp_path: Path
) -> None:
    """Full at 3, deltas at 6, 9 (goes wrong, before or after its manifest is there) and 12, then killed."""
    told: list[str] = []
    plan = Checkpointing(str(tmp_path), None, 2, told.append, 3)
    trainer = make_trainer(**EVICTING)
    failing = faults.armed(f"checkpoint.{point}", faults.fail(lambda: raised("by surprise")), at=3)
    with failing as fault, pytest.raises(KilledError):
        trainer.fit(train_data(), epochs=1, checkpoint=plan, observers=[KillAt(14)])
    trainer.close()
    assert fault.fired
    assert [(raised.__name__ in text) for text in told] == [True]
    link = Series(str(tmp_path)).manifest(12).delta
    assert link is not None
    assert link.previous == "step-00000006"
    again = make_trainer(**EVICTING)
    left = everything(again, again.fit(train_data(), epochs=1, checkpoint=plan, resume=True))
    again.close()
    assert_same(undisturbed({"epochs": 1}, **EVICTING), left)


def test_changes_that_cannot_be_put_back_make_the_next_snapshot_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: Changes, __: Delta) -> None:
        raise MemoryError

    monkeypatch.setattr(Changes, "put_back", lost)
    plan = Checkpointing(str(tmp_path), None, 2, lambda _: None, 3)
    trainer = make_trainer()
    failing = faults.armed("checkpoint.data_written", faults.fail(lambda: OSError(28, "no space")), at=3)
    with failing, pytest.raises(KilledError):
        trainer.fit(train_data(), epochs=1, checkpoint=plan, observers=[KillAt(14)])
    trainer.close()
    assert Series(str(tmp_path)).steps() == [3, 6, 12]
    assert Series(str(tmp_path)).manifest(12).delta is None


@pytest.mark.parametrize("delta", [None, 3])
@pytest.mark.parametrize("point", ["disk.make_folder", "disk.write", "checkpoint.data_written"])
def test_after_a_failed_save_no_row_is_copied_any_more(
    point: str, delta: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth snapshot fails, before or amid its rows; without it the store copies nothing aside."""
    told: list[str] = []
    plan = Checkpointing(str(tmp_path), None if delta else 3, 2, told.append, delta)
    trainer = make_trainer()
    assert isinstance(trainer.exchange, LocalExchange)
    groups = trainer.exchange.shard.groups
    monkeypatch.setattr("satrap.exchange.row_sources.CHUNK_ROWS", 4)  # so that a failure finds chunks to come

    class Cuts(Observer):
        def __init__(self) -> None:
            self.open: dict[int, int] = {}

        def step(self, progress: Progress) -> None:
            self.open[progress.step] = sum(len(group._cuts) for group in groups)

    cuts = Cuts()
    gc.disable()  # a cycle of references would be found some time
    try:
        with faults.armed(point, faults.fail(lambda: OSError(28, "no space")), every=1):
            trainer.fit(train_data(), epochs=1, steps=8, checkpoint=plan, observers=[cuts])
    finally:
        gc.enable()
    trainer.close()
    assert len(told) == 2
    assert set(cuts.open.values()) == {0}


def test_staleness_matters_here() -> None:
    """Otherwise forgetting what was in flight would go unnoticed above."""
    fit = {"epochs": EPOCHS}
    assert undisturbed(fit, staleness=3)["rows"] != undisturbed(fit, staleness=2)["rows"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"admission": satrap.store.Admission(min_count=2, memory=256)},
        {"admission": satrap.store.Admission(probability=0.5)},
        {"embedding_dtype": "bfloat16"},
        SMALL | {"eviction": satrap.store.Eviction("lru")},
        SMALL | {"eviction": satrap.store.Eviction("lfu"), "embedding_dtype": "float16"},
        SMALL | {"eviction": satrap.store.Eviction("ttl", ttl=3), "embedding_dtype": "bfloat16"},
        {"embedding_optimizer": satrap.optim.Adam(lr=0.01)},
        {"lr_schedule": satrap.optim.Cosine(steps=20), "clip_norm": 0.5},
    ],
    ids=["min_count", "probability", "bfloat16", "lru", "lfu", "ttl", "adam", "schedule"],
)
def test_all_that_the_store_and_the_schedule_remember(arguments: dict[str, Any], tmp_path: Path) -> None:
    fit = {"epochs": 2}
    assert_same(undisturbed(fit, **arguments), killed_and_resumed(tmp_path, 10, 25, fit, **arguments))


@pytest.mark.parametrize(
    ("every", "delta", "policy"),
    covering([(10, None), (12, 4)], ["lru", "lfu"]),
)
def test_rows_of_a_tier_are_saved(policy: str, every: int, delta: int | None, tmp_path: Path) -> None:
    fit = {"epochs": 2}
    arguments = SMALL | {
        "eviction": satrap.store.Eviction(policy),  # type: ignore[arg-type]
        "memory": SMALL["memory"] + 214_400,  # with the index of the tier
        "tier": satrap.store.Tier(str(tmp_path), 1 << 18),
        "embedding_dtype": "bfloat16",
    }
    expected = undisturbed(fit, **arguments)
    assert_same(expected, killed_and_resumed(tmp_path / "run", every, 25, fit, delta, **arguments))
    free = {name: arguments[name] for name in ("admission", "embedding_dtype")}
    assert_same(undisturbed(fit, **free), expected)


@pytest.mark.parametrize("kill", [20, 38, 55])
def test_best_weights_survive(kill: int, tmp_path: Path) -> None:
    """Patience runs out in either run; the weights of the best pass come back."""
    fit = {"epochs": 20, "validation": validation_data()}
    arguments: dict[str, Any] = {"patience": 3, "embedding_optimizer": satrap.optim.Adagrad(lr=0.8)}
    expected = undisturbed(fit, **arguments)
    assert expected["counts"][3] == "patience"
    assert expected["counts"][0] >= 60
    assert expected["history"][-1]["auc"] < expected["metrics"]["auc"]
    assert_same(expected, killed_and_resumed(tmp_path, 10, kill, fit, **arguments))


def test_steps_end_the_run_at_the_same_step(tmp_path: Path) -> None:
    fit = {"epochs": 9, "steps": 33}
    assert_same(undisturbed(fit), killed_and_resumed(tmp_path, 8, 31, fit))


def test_a_stop_amid_the_last_evaluation_leaves_it_to_the_resumed_run(tmp_path: Path) -> None:
    """Also where `steps` end the run, and all of them are done."""

    class Stopping:
        def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
            for batch in validation_data().batches(epoch, position):
                if trainer.run.steps == 33:
                    trainer.request_stop()
                yield batch

    fit: dict[str, Any] = {"epochs": 9, "steps": 33, "checkpoint": Checkpointing(str(tmp_path))}
    trainer = make_trainer()
    assert trainer.fit(train_data(), **fit, validation=Stopping()).stopped == "stopped"
    trainer.close()
    trainer = make_trainer()
    result = trainer.fit(train_data(), **fit, validation=validation_data(), resume=True)
    left = everything(trainer, result)
    trainer.close()
    del fit["checkpoint"]
    assert_same(undisturbed({**fit, "validation": validation_data()}), left)


def test_fewer_steps_than_there_are_end_the_run_with_an_evaluation(tmp_path: Path) -> None:
    plan = Checkpointing(str(tmp_path))
    trainer = make_trainer()
    trainer.fit(train_data(), epochs=9, checkpoint=plan, observers=[StopAt(trainer, 20)])
    trainer.close()
    trainer = make_trainer()
    fit: dict[str, Any] = {"epochs": 9, "steps": 18, "validation": validation_data()}
    result = trainer.fit(train_data(), **fit, checkpoint=plan, resume=True)
    trainer.close()
    assert (result.steps, result.stopped, len(result.history)) == (21, "steps", 1)


def test_data_without_positions_is_counted(tmp_path: Path) -> None:
    from tests.train.one_trainer import make_trainer as make_plain

    lefts = []
    for place in (None, tmp_path):
        trainer = make_plain(staleness=2)
        data = Batches(make_batches(12))
        if place is not None:
            plan = Checkpointing(str(place), every_steps=5)
            with pytest.raises(KilledError):
                trainer.fit(data, epochs=2, checkpoint=plan, observers=[KillAt(19)])
            trainer.close()
            trainer = make_plain(staleness=2)
            result = trainer.fit(data, epochs=2, checkpoint=plan, resume=True)
        else:
            result = trainer.fit(data, epochs=2)
        lefts.append(everything_but_random(trainer, result))
        trainer.close()
    assert_same(*lefts)


def everything_but_random(trainer: Trainer, result: Result) -> dict[str, Any]:
    left = everything(trainer, result)
    del left["random"]
    return left


def test_killed_again_and_again(tmp_path: Path) -> None:
    fit = {"epochs": 2}
    expected = undisturbed(fit)
    plan = Checkpointing(str(tmp_path), every_steps=4)
    for kill in (6, 7, 13, 18, 26, None):
        trainer = make_trainer()
        observers = [] if kill is None else [KillAt(kill)]
        resume = kill != 6
        if kill is not None:
            with pytest.raises(KilledError):
                trainer.fit(train_data(), **fit, checkpoint=plan, resume=resume, observers=observers)
        else:
            result = trainer.fit(train_data(), **fit, checkpoint=plan, resume=True)
            assert_same(expected, everything(trainer, result))
        trainer.close()


@pytest.mark.parametrize("at", [1, 15, 22])
def test_a_stop_saves_at_once_and_can_be_resumed(at: int, tmp_path: Path) -> None:
    fit = {"epochs": 2, "validation": validation_data()}
    expected = undisturbed(fit)
    plan = Checkpointing(str(tmp_path))
    trainer = make_trainer()
    result = trainer.fit(train_data(), **fit, checkpoint=plan, observers=[StopAt(trainer, at)])
    assert result.stopped == "stopped"
    # What is seen in `step` of an observer is asked for in the next step.
    assert result.steps == at + 1 or (at == 15 and result.steps == 15)
    assert Series(str(tmp_path)).steps() == [result.steps]
    trainer.close()
    trainer = make_trainer()
    result = trainer.fit(train_data(), **fit, checkpoint=plan, resume=True)
    assert_same(expected, everything(trainer, result))
    trainer.close()


def test_a_stop_without_a_place_to_save_is_an_interrupt_after_the_step() -> None:
    trainer = make_trainer()
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(train_data(), observers=[StopAt(trainer, 3)])
    assert type(caught.value) is KeyboardInterrupt
    assert trainer.run.steps == 4
    assert not trainer.state.fitting
    trainer.close()


def test_a_stop_ends_an_evaluation(tmp_path: Path) -> None:
    read = 0

    class Asking(Batches):
        def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
            nonlocal read
            for batch in self.items:
                read += 1
                trainer.request_stop()
                yield batch

    trainer = make_trainer()
    validation = Asking(list(validation_data().batches()))
    plan = Checkpointing(str(tmp_path))
    assert trainer.fit(train_data(), validation=validation, checkpoint=plan).stopped == "stopped"
    assert read == 1
    assert Series(str(tmp_path)).steps() == [STEPS]
    trainer.close()


def test_a_stop_before_the_first_step(tmp_path: Path) -> None:
    expected = undisturbed({})
    plan = Checkpointing(str(tmp_path))
    trainer = make_trainer()
    trainer.request_stop()
    assert trainer.fit(train_data(), checkpoint=plan).steps == 0
    trainer.close()
    trainer = make_trainer()
    assert_same(expected, everything(trainer, trainer.fit(train_data(), checkpoint=plan, resume=True)))
    trainer.close()


def test_a_stop_without_a_place_to_save_is_an_interrupt() -> None:
    trainer = make_trainer()
    trainer.request_stop()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(train_data())
    trainer.close()


def test_a_failed_save_is_said_and_the_next_one_tried(tmp_path: Path) -> None:
    said: list[str] = []
    full = faults.fail(lambda: OSError(28, "No space left on device"))
    plan = Checkpointing(str(tmp_path), every_steps=10, notice=said.append)
    trainer = make_trainer()

    class Full(Observer):
        """The disk is full while the second and third snapshot are written."""

        def step(self, progress: Progress) -> None:
            if progress.step in (19, 39):
                context = faults.armed("disk.create", full, every=1)
                if progress.step == 19:
                    self.context = context
                    context.__enter__()
                else:
                    self.context.__exit__(None, None, None)

    result = trainer.fit(train_data(), epochs=3, checkpoint=plan, observers=[Full()])
    trainer.close()
    assert result.steps == 45
    assert Series(str(tmp_path)).steps() == [10, 40]
    assert len(said) == 2
    assert "No space left on device" in said[0]
    assert "older checkpoints are unchanged" in said[0]


def test_training_goes_on_while_a_snapshot_is_written(tmp_path: Path) -> None:
    """The writer is held up until ten more steps are done; what it writes is the state at the cut."""
    gone_on = threading.Event()

    class Watch(Observer):
        def step(self, progress: Progress) -> None:
            if progress.step == 20:
                gone_on.set()

    def hold(_: str) -> None:
        assert gone_on.wait(20)

    plan = Checkpointing(str(tmp_path / "slow"), every_steps=10, keep=9, notice=lambda _: None)
    trainer = make_trainer()
    with faults.armed("disk.create", hold):
        trainer.fit(train_data(), epochs=2, checkpoint=plan, observers=[Watch()])
    trainer.close()
    plan = Checkpointing(str(tmp_path / "stop"))
    other = make_trainer()
    other.fit(train_data(), checkpoint=plan, observers=[StopAt(other, 9)])
    other.close()
    (_, first), (_, second) = Series(str(tmp_path / "slow")).read(10), Series(str(tmp_path / "stop")).read(10)
    assert first.settings["run"]["streams"] == second.settings["run"]["streams"]
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[k], second.model[k]) for k in first.model)
    for (_, a), (_, b) in zip(first.chunks, second.chunks, strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.state, b.state)


def test_nothing_to_resume(tmp_path: Path) -> None:
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="there is nothing to resume"):
        trainer.fit(train_data(), checkpoint=Checkpointing(str(tmp_path)), resume=True)
    with pytest.raises(ConfigError, match="there is nothing to resume"):
        trainer.fit(train_data(), resume=True)
    assert trainer.run.steps == 0
    trainer.close()


def stopped_at(place: Path, step: int) -> Checkpointing:
    plan = Checkpointing(str(place))
    trainer = make_trainer()
    trainer.fit(train_data(), checkpoint=plan, observers=[StopAt(trainer, step - 1)])
    trainer.close()
    return plan


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"staleness": 2}, "another staleness"),
        ({"seed": 5}, "another seed"),
        ({"precision": "bfloat16"}, "another precision"),
        ({"embedding_optimizer": satrap.optim.SGD(lr=0.1)}, "another embedding optimizer"),
    ],
)
def test_another_trainer_is_refused(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    plan = stopped_at(tmp_path, 5)
    trainer = make_trainer(**change)
    with pytest.raises(ConfigError, match=what):
        trainer.fit(train_data(), checkpoint=plan, resume=True)
    trainer.close()


def test_other_data_is_refused(tmp_path: Path) -> None:
    plan = stopped_at(tmp_path, 5)
    trainer = make_trainer()
    rows = columns(BATCH * (STEPS - 1) + 7, 8)
    other = satrap.data.read(rows, schema(), batch_size=BATCH, shuffle=True)
    other = other.with_options(seed=3, buffer_rows=100)
    with pytest.raises(DataError, match="has changed since the snapshot: its content has changed"):
        trainer.fit(other, checkpoint=plan, resume=True)
    trainer.close()
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="other settings"):
        trainer.fit(train_data().with_options(batch_size=10), checkpoint=plan, resume=True)
    trainer.close()


def test_a_snapshot_is_of_the_same_arguments_whatever_training_has_changed() -> None:
    changed = dict.fromkeys(("steps", "lr_scale", "loss_scale", "loss_scale_steps", "run", "best"), 1)
    own = {"seed": 1, "clip_norm": (1, 2), **changed}
    _check_same({"seed": 1, "clip_norm": [1, 2], "steps": 2}, own, "here")
    for saved, fix in (({"seed": 1, "clip_norm": [1, 3]}, "use [1, 3]"), ({"seed": 1}, "use None")):
        with pytest.raises(ConfigError, match="the snapshot was taken with another clip norm") as caught:
            _check_same(saved, own, "here")
        assert (caught.value.where, caught.value.fix) == ("here", f"{fix}, or start a new run")
