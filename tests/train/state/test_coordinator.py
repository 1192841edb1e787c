"""All processes write their own rows and parts of the network into one checkpoint, all or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from satrap.checkpoint import Checkpoint, Series, read_checkpoint, write_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense import Workers
from satrap.errors import CheckpointError, SatrapError, StoreError
from satrap.exchange import Exchange, LocalExchange
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.wrappers.broadcast import PeerExchange
from satrap.store import Shard
from satrap.train.state.coordinator import SharedCut
from tests.contract.parties import TABLES, contents, request
from tests.dense.threads import together
from tests.exchange.collective.parties import EXACT, Meeting, ThreadRanks
from tests.support.covering import covering


class Unwritable(torch.Tensor):
    """A tensor whose disk is full."""

    error: type[Exception] = OSError

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        raise self.error("no space left on device")

    def detach(self) -> torch.Tensor:
        return self


class TooLarge(Unwritable):
    error = MemoryError


def half(rank: int, number: float, kind: type[torch.Tensor] = torch.Tensor) -> DensePart:
    tensor = torch.full((2,), number)
    return DensePart(
        {"w": tensor if kind is torch.Tensor else tensor.as_subclass(kind)}, {}, {"w": ([4], [2 * rank])}
    )


def save(cut: SharedCut, workers: Workers, place: str) -> SatrapError | None:
    """Write a cut, as all workers do; return the error, in process 0."""
    if workers.rank:
        cut.assist()
        return None
    try:
        cut.direct(lambda: write_checkpoint(place, cut.fill(Checkpoint({}, {}, {}, ()))))
    except SatrapError as error:
        return error
    return None


def with_peers(work: Callable[[Exchange, Workers], Any]) -> list[Any]:
    """Do something with two workers that share the exchange of the first."""

    def run(workers: Workers) -> Any:
        exchange = PeerExchange(None if workers.rank else LocalExchange(Shard(TABLES, seed=0)), workers)
        try:
            return work(exchange, workers)
        finally:
            exchange.close()

    return together(2, run)


@pytest.mark.parametrize("place", ["folder", "memory://cuts"])
def test_each_process_writes_its_part_of_the_network_and_the_first_one_the_rows(
    place: str, tmp_path: Path
) -> None:
    here = str(tmp_path / place) if place == "folder" else place

    def work(exchange: Exchange, workers: Workers) -> None:
        if not workers.rank:
            exchange._inner.lookup([request(0, [1, 2], [3])], create=True)  # type: ignore[attr-defined]
        for number in (1.0, 2.0):  # cuts of the same workers do not hear of each other
            cut = SharedCut(exchange, workers, half(workers.rank, number + workers.rank), still=True)
            assert cut.assists == (workers.rank == 1)
            assert save(cut, workers, f"{here}/{number}") is None

    with_peers(work)
    for number in (1.0, 2.0):
        saved = read_checkpoint(f"{here}/{number}")
        assert saved.model["w"].tolist() == [number, number, number + 1, number + 1]
        assert sum(len(chunk.ids) for _, chunk in saved.chunks) == 3
    if place != "folder":
        fsspec.filesystem("memory").rm("/cuts", recursive=True)


@pytest.mark.parametrize(("kind", "failing"), covering([Unwritable, TooLarge], [0, 1]))
def test_a_part_that_cannot_be_written_leaves_the_checkpoint_before(
    kind: type[torch.Tensor], failing: int, tmp_path: Path
) -> None:
    place = str(tmp_path / "saved")

    def work(exchange: Exchange, workers: Workers) -> SatrapError | None:
        assert save(SharedCut(exchange, workers, half(workers.rank, 1.0)), workers, place) is None
        bad = half(workers.rank, 2.0, kind if workers.rank == failing else torch.Tensor)
        return save(SharedCut(exchange, workers, bad), workers, place)

    error, _ = with_peers(work)
    assert isinstance(error, CheckpointError)
    assert f"worker {failing} could not write its part of the network" in error.what
    assert "no space left on device" in error.what
    assert read_checkpoint(place).model["w"].tolist() == [1, 1, 1, 1]
    assert len([name for name in Storage(place).names() if name.startswith("data-")]) == 1


def test_a_worker_that_does_not_reach_the_folder_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "satrap.train.state.coordinator.Storage", lambda url: Storage(f"{tmp_path}/of another machine")
    )

    def work(exchange: Exchange, workers: Workers) -> SatrapError | None:
        return save(SharedCut(exchange, workers, half(workers.rank, 1.0)), workers, str(tmp_path / "here"))

    error, _ = with_peers(work)
    assert isinstance(error, CheckpointError)
    assert error.what.startswith("worker 1 could not write its part of the network: FileNotFoundError")
    assert "all must reach the folder" in error.why
    assert not list((tmp_path / "here").iterdir())


def test_who_is_released_writes_nothing(tmp_path: Path) -> None:
    def work(exchange: Exchange, workers: Workers) -> None:
        cut = SharedCut(exchange, workers, half(workers.rank, 1.0))
        cut.assist() if workers.rank else cut.direct(lambda: None)

    with_peers(work)
    assert not list(tmp_path.iterdir())


def test_one_process_alone_has_nobody_to_tell(tmp_path: Path) -> None:
    exchange = LocalExchange(Shard(TABLES, seed=0))
    exchange.lookup([request(0, [1, 2], [3])], create=True)
    cut = SharedCut(exchange, Workers(), None, delta=False)
    assert not cut.assists
    assert save(cut, Workers(), str(tmp_path)) is None
    assert sum(len(chunk.ids) for _, chunk in read_checkpoint(str(tmp_path)).chunks) == 3
    exchange.close()


# -- rows that all processes hold together


def among_ranks(size: int, work: Callable[[CollectiveExchange, Workers], Any]) -> list[Any]:
    meeting = Meeting(size)

    def run(workers: Workers) -> Any:
        exchange = CollectiveExchange(ThreadRanks(meeting, workers.rank), TABLES, wire=EXACT)  # type: ignore[arg-type]
        try:
            return work(exchange, workers)
        finally:
            exchange.close()

    return together(size, run)


def change(exchange: Exchange, ids: range) -> None:
    lookup = exchange.lookup([request(0, list(ids), []), request(1, list(ids))], create=True)
    exchange.apply(lookup, [np.ones((len(ids), dim), np.float32) for dim in (4, 17)], lr_scale=1.0)
    exchange.flush()


def to_series(cut: SharedCut, workers: Workers, series: Series, step: int) -> SatrapError | None:
    if workers.rank:
        cut.assist()
        return None
    try:
        cut.direct(lambda: series.write(step, cut.fill(Checkpoint({}, {"w": torch.zeros(1)}, {}, ()))))
    except SatrapError as error:
        cut.put_back()
        return error
    return None


def assert_saved(exchange: CollectiveExchange, workers: Workers, url: str) -> None:
    """A single store with the rows of a checkpoint has those that a rank holds."""
    one = LocalExchange(Shard(TABLES, seed=0))
    one.rows.read(url)
    rows = contents(one)
    for table, (ids, weights, state) in contents(exchange).items():
        places = [rows[table][0].tolist().index(id_) for id_ in ids.tolist()]
        np.testing.assert_array_equal(rows[table][1][places], weights)
        np.testing.assert_array_equal(rows[table][2][places], state)
    one.close()


FAILURES = [
    OSError(28, "No space left on device"),
    StoreError("an export was abandoned"),
    MemoryError("not enough"),
    RuntimeError("of some library"),
]
"""What may keep a rank from writing its rows."""


@pytest.mark.parametrize(
    ("error", "failing"),
    covering(FAILURES, [0, 1]),
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_rank_that_cannot_write_fails_the_save_and_the_changes_come_with_the_next(
    error: Exception, failing: int, tmp_path: Path
) -> None:
    series = Series(str(tmp_path))

    def work(exchange: CollectiveExchange, workers: Workers) -> SatrapError | None:
        def cut(delta: bool | None) -> SharedCut:
            return SharedCut(exchange, workers, None, delta=delta)

        change(exchange, range(100))
        assert to_series(cut(False), workers, series, 1) is None
        change(exchange, range(100, 120))
        bad = cut(True if workers.rank == 0 else None)  # process 0 decides
        if workers.rank == failing:
            bad._own["rows"] = lambda *_: (_ for _ in ()).throw(error)  # type: ignore[attr-defined]
        result = to_series(bad, workers, series, 2)
        last = cut(True)
        assert last._rows is not None
        assert last._rows.deleted == {}
        assert to_series(last, workers, series, 2) is None
        assert_saved(exchange, workers, series.place(2))
        return result

    caught, _ = among_ranks(2, work)
    assert isinstance(caught, StoreError if isinstance(error, StoreError) else CheckpointError)
    assert error.args[-1] in caught.what
    assert f"worker {failing}" in str(caught)
    rows = list(read_checkpoint(series.place(2)).chunks)
    assert sum(len(chunk.ids) for table, chunk in rows if table == "c") == 120


def test_a_delta_is_full_on_all_ranks_if_one_cannot_give_a_delta(tmp_path: Path) -> None:
    series = Series(str(tmp_path))

    def work(exchange: CollectiveExchange, workers: Workers) -> Any:
        change(exchange, range(100))
        cut = SharedCut(exchange, workers, None, delta=False)
        assert to_series(cut, workers, series, 1) is None
        if workers.rank == 1:
            exchange.shard.clear()  # from now on it knows no changes
        cut = SharedCut(exchange, workers, None, delta=True)
        assert to_series(cut, workers, series, 2) is None
        assert cut._rows is not None
        return cut._rows.deleted, dict(cut.counts)

    (first, counts), (second, _) = among_ranks(2, work)
    assert first is second is None
    assert counts == {table: [1, 1] for table in ("a", "b", "c")}
    (tmp_path / "step-00000001").rename(tmp_path / "away")  # the second snapshot stands without the first
    assert list(read_checkpoint(series.place(2)).chunks)
