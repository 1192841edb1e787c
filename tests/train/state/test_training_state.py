"""The state of a training is described, saved and restored as a whole."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.checkpoint import Series, read_checkpoint
from satrap.checkpoint.dense import pack_optimizer
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense import DataParallelBackend, Workers
from satrap.train import Checkpointing
from satrap.train.schedule import Sync
from satrap.train.state.training_state import _shares
from tests.dense.threads import together
from tests.support.interruptions import KillAt, KilledError
from tests.train.one_trainer import all_rows, make_trainer
from tests.train.plain import Batches, Tower, make_batches


def test_it_is_saved_where_there_is_room(tmp_path: Path) -> None:
    trainer = make_trainer(mode="sync")
    trainer.fit(Batches(make_batches(5)))
    (tmp_path / "file").write_text("in the way")
    kept, error = trainer.state.save([str(tmp_path / "file" / "model"), str(tmp_path / "model")])
    assert kept == str(tmp_path / "model")
    assert error is not None
    assert str(tmp_path / "file") in str(error)
    assert trainer.state.save([str(tmp_path / "file" / "model")])[0] == ""
    assert read_checkpoint(kept).settings["steps"] == 5
    trainer.close()


def test_a_restored_state_trains_on_like_the_first(tmp_path: Path) -> None:
    first = make_trainer(mode="sync")
    first.fit(Batches(make_batches(20)))
    first.control.lr_scale = 0.25
    first.save(str(tmp_path / "model"))
    other = make_trainer(mode="sync")
    other.fit(Batches(make_batches(4, seed=7)))
    other.exchange.rows.clear()
    other.state.restore(read_checkpoint(str(tmp_path / "model")))
    assert other.control.lr_scale == 0.25
    for trainer in (first, other):
        trainer.fit(Batches(make_batches(10, seed=8)))
    np.testing.assert_array_equal(all_rows(first, "item"), all_rows(other, "item"))
    for a, b in zip(first.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    first.close()
    other.close()


def test_the_best_are_brought_back_with_the_present_learning_rate(tmp_path: Path) -> None:
    trainer = make_trainer(mode="sync", patience=2)
    trainer.fit(Batches(make_batches(5)))
    best = all_rows(trainer, "user")
    assert trainer.state.keep_best() == ""
    trainer.state.restore_best()  # nothing has changed since: nothing is read
    trainer.state.run.progress.step += 1
    trainer.exchange.rows.clear()
    trainer.control.lr_scale = 0.125
    trainer.state.restore_best()
    np.testing.assert_array_equal(all_rows(trainer, "user"), best)
    assert trainer.control.lr_scale == 0.125
    trainer.state.best.close()
    trainer.close()


class Halves(DataParallelBackend):
    """Each of two processes gives every other weight, with its optimizer state, to a checkpoint."""

    whole = False

    def part(self) -> DensePart:
        assert self.optimizer is not None
        mine = [name for i, name in enumerate(self.model.state_dict()) if i % 2 == self.workers.rank]
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {i: e for i, e in optimizer["state"].items() if i % 2 == self.workers.rank}
        return DensePart({name: self.model.state_dict()[name] for name in mine}, optimizer)


@pytest.mark.parametrize("kind", ["model", "snapshot"])
def test_no_process_needs_to_hold_all_weights(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(workers: Workers, place: str) -> None:
        for rank in range(workers.size):  # one after the other: the seed is the process's
            if workers.rank == rank:
                trainer = make_trainer(mode="sync", workers=workers)
            workers.meet("built")
        plan = Checkpointing(place, every_steps=10) if kind == "snapshot" else None
        trainer.fit(Batches(make_batches(10, seed=workers.rank)), checkpoint=plan)
        if plan is None:
            trainer.save(place)
        trainer.close()

    saved = []
    for backend in (DataParallelBackend, Halves):
        place = str(tmp_path / backend.__name__)
        monkeypatch.setattr(Sync, "dense", backend)
        together(2, lambda workers, place=place: work(workers, place))
        saved.append(read_checkpoint(place if kind == "model" else Series(place).place(10)))
    whole, parts = saved
    assert parts.model.keys() == whole.model.keys()
    assert all(torch.equal(parts.model[name], tensor) for name, tensor in whole.model.items())
    assert pack_optimizer(parts.optimizer) == pack_optimizer(whole.optimizer)


def test_two_processes_save_their_halves_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    places = [str(tmp_path / "file" / "model"), str(tmp_path / "model"), str(tmp_path / "never")]
    said, weights = dict[int, tuple[str, object]](), dict[str, Tensor]()

    def work(workers: Workers) -> None:
        trainer = make_trainer(mode="sync", workers=workers)
        trainer.fit(Batches(make_batches(3, seed=workers.rank)))
        # What the others would name is not read.
        said[workers.rank] = trainer.state.save(["nowhere"] if workers.rank else iter(places))
        if workers.rank == 0:
            weights.update(trainer.model.state_dict())
        trainer.close()

    monkeypatch.setattr(Sync, "dense", Halves)
    together(2, work)
    assert [said[rank][0] for rank in range(2)] == [places[1]] * 2
    assert str(tmp_path / "file") in str(said[0][1])
    assert said[1][1] is None
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]
    found = read_checkpoint(places[1]).model
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


class Tied(Tower):
    """A network whose last weight is its first one too, with a buffer of 16 bits that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(25, 1, bias=False), nn.Linear(25, 1)
        self.last.weight = self.first.weight
        self.pace = 1
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bfloat16))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        if self.training:
            self.seen += self.pace
        return super().forward(batch) + self.first(batch.flat()) * self.last(batch.flat()) + self.seen[0]


def test_tied_weights_and_buffers_of_16_bits_are_saved_and_resumed(tmp_path: Path) -> None:
    plan, data = Checkpointing(str(tmp_path), every_steps=7), Batches(make_batches(20))
    network = Tied()
    whole, killed, resumed = (make_trainer(model=copy.deepcopy(network), mode="sync") for _ in range(3))
    whole.fit(data)
    with pytest.raises(KilledError):
        killed.fit(data, checkpoint=plan, observers=[KillAt(16)])
    resumed.fit(data, checkpoint=plan, resume=True)
    resumed.save(str(tmp_path / "model"))
    left = [trainer.model.state_dict() for trainer in (whole, resumed)]
    left.append(read_checkpoint(str(tmp_path / "model")).model)
    assert left[0]["seen"].tolist() == [20, 20]
    for name, tensor in left[0].items():
        assert all(torch.equal(other[name], tensor) for other in left[1:]), name
    for trainer in (whole, killed, resumed):
        trainer.close()


def test_each_process_resumes_its_own_buffers_of_16_bits(tmp_path: Path) -> None:
    plan = Checkpointing(str(tmp_path), every_steps=7)
    seen: dict[int, list[float]] = {}

    def work(workers: Workers) -> None:
        data = Batches(make_batches(10, seed=workers.rank))
        first, second = (make_trainer(model=Tied(), mode="sync", workers=workers) for _ in range(2))
        first.model.pace = second.model.pace = 1 + workers.rank
        for trainer, at in ((first, 8), (second, 9)):  # at the end all get those of process 0
            with pytest.raises(KilledError):
                trainer.fit(data, checkpoint=plan, observers=[KillAt(at)], resume=trainer is second)
        seen[workers.rank] = second.model.seen.tolist()
        for trainer in (first, second):
            trainer.close()

    together(2, work)
    assert seen == {0: [9, 9], 1: [18, 18]}


def test_in_async_a_second_fit_goes_on_with_the_optimizer_state_of_the_network() -> None:
    batches, whole, halves = make_batches(20), *(make_trainer(mode="async", staleness=0) for _ in range(2))
    whole.fit(Batches(batches))
    for half in (batches[:10], batches[10:]):
        halves.fit(Batches(half))
    for a, b in zip(whole.model.parameters(), halves.model.parameters(), strict=True):
        assert torch.equal(a, b)
    np.testing.assert_array_equal(all_rows(whole, "user"), all_rows(halves, "user"))
    whole.close()
    halves.close()


def test_processes_that_read_the_same_batches_have_one_share() -> None:
    runs = [{"streams": [{"worker": n, "done": d}], "of": n} for n, d in ((0, 1), (0, 1), (1, 1), (1, 2))]
    assert _shares(runs) == [runs[0], runs[2], runs[3]]
    assert _shares([]) == []
