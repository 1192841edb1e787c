"""Rows read by a loader are those read here: batches, order, positions, errors."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from satrap import data
from satrap.data.remote import server as module
from satrap.data.remote.client import RemoteData
from satrap.data.remote.server import AHEAD
from satrap.errors import ConfigError, DataError, ExchangeError
from satrap.exchange.servers import ServersExchange
from satrap.optim import SGD
from satrap.rpc.client.peer import ForgottenError
from satrap.schema import Table
from tests.data.loaders import ROWS, SCHEMA, columns, loader, remote
from tests.support.batches import assert_same


@pytest.fixture(scope="module")
def rows() -> data.Dataset:
    return data.read(columns(), SCHEMA, batch_size=50)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_the_data_set_to_the_bit(rows: data.Dataset, shuffle: bool) -> None:
    here = rows.with_options(shuffle=shuffle, buffer_rows=200, seed=5)
    with loader({"train": here}) as (server, _):
        for worker, epoch in itertools.product(range(3), range(2)):
            mine = list(remote(server, worker=worker, workers=3).batches(epoch))
            expected = list(here.with_options(worker=worker, workers=3).batches(epoch))
            assert len(mine) == len(expected) > 3
            for a, b in zip(mine, expected, strict=True):
                assert_same(a, b)


def test_a_pass_goes_on_from_a_position_of_either(rows: data.Dataset) -> None:
    here = rows.with_options(shuffle=True, buffer_rows=200)
    expected = list(here.batches(1))
    with loader({"train": here}) as (server, _):
        there = remote(server)
        begun = list(itertools.islice(there.batches(1), 7))
        for source in (begun[-1], expected[6]):
            for a, b in zip(there.batches(1, source.position), expected[7:], strict=True):
                assert_same(a, b)
        for a, b in zip(here.batches(1, begun[-1].position), expected[7:], strict=True):
            assert_same(a, b)


@pytest.mark.cluster
def test_the_end_of_a_pass_does_not_wait_for_a_loader_that_is_gone(rows: data.Dataset) -> None:
    with loader({"train": rows}) as (server, _):
        batches = remote(server, deadline=10_000).batches()
        next(batches)
    batches.close()  # type: ignore[attr-defined]


def test_several_passes_at_once(rows: data.Dataset) -> None:
    with loader({"train": rows}) as (server, service):
        there = [remote(server, worker=w, workers=2) for w in range(2)]
        counts = [0, 0, 0]

        def follow(number: int, worker: int) -> None:
            counts[number] = sum(batch.size for batch in there[worker].batches())

        threads = [threading.Thread(target=follow, args=pair) for pair in enumerate((0, 1, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert counts[0] + counts[1] == ROWS
        assert counts[1] == counts[2]
        assert service.samples == sum(counts)
        assert service.statistics().streams == 0


def test_length_and_place_are_told(rows: data.Dataset) -> None:
    with loader({"train": rows}) as (server, _):
        there = remote(server, workers=2)
        here = rows.with_options(worker=0, workers=2)
        assert there.exists()
        assert not remote(server, "test").exists()
        assert there.num_rows() == here.num_rows()
        for batch in there.batches():
            assert there.progress(batch.position) == here.progress(batch.position)
        assert there.progress({"some": "where"}) is None


def test_reading_stops_when_nobody_asks(rows: data.Dataset) -> None:
    read: list[int] = []

    class Watched(data.Dataset):
        def with_options(self, **_: Any) -> data.Dataset:
            return self

        def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Any]:
            for batch in super().batches(epoch, position):
                read.append(batch.size)
                yield batch

    watched = Watched(rows._source, SCHEMA, rows.settings)
    with loader({"train": watched}) as (server, service):
        batches = remote(server).batches()
        next(batches)
        most = 2 * AHEAD + 2  # on the way, ready, the first one and one being read
        limit = time.monotonic() + 10
        while service.statistics().ready < AHEAD and time.monotonic() < limit:
            time.sleep(0.01)
        assert service.statistics().ready == AHEAD
        assert len(read) <= most < ROWS // 50
        batches.close()
        assert service.statistics().streams == 0


def test_a_slow_reader_is_waited_for(rows: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satrap.data.remote.server.PATIENCE", 0.02)

    class Slow(data.Dataset):
        def with_options(self, **_: Any) -> data.Dataset:
            return self

        def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Any]:
            for batch in super().batches(epoch, position):
                time.sleep(0.2)
                yield batch

    slow = Slow(rows._source, SCHEMA, rows.with_options(batch_size=250).settings)
    with loader({"train": slow}) as (server, _):
        found = list(remote(server, deadline=0.5).batches())
    assert sum(batch.size for batch in found) == ROWS


def test_errors_of_the_data_are_the_users() -> None:
    bad = data.read({**columns(10), "clicked": ["no"] * 10}, SCHEMA, batch_size=5)
    with loader({"train": bad}) as (server, _):
        with pytest.raises(DataError, match="no") as caught:
            list(remote(server).batches())
        with pytest.raises(DataError) as expected:
            list(bad.batches())
        assert str(caught.value) == str(expected.value)
        good = data.read(columns(10), SCHEMA, batch_size=5)
        [position] = [batch.position for batch in itertools.islice(good.batches(), 1)]
        with pytest.raises(ConfigError, match="position belongs to other data"):
            list(remote(server).batches(position={**position, "check": 1}))


def test_a_loader_that_is_started_anew_goes_on(rows: data.Dataset) -> None:
    here = rows.with_options(shuffle=True, buffer_rows=200)
    with loader({"train": here}) as (server, _):
        found = []
        for batch in (batches := remote(server).batches(1)):
            found.append(batch)
            if len(found) == 6:
                break
    with loader({"train": here}, server.address) as (_, service):
        found += batches
        assert service.samples < ROWS
    for a, b in zip(found, here.batches(1), strict=True):
        assert_same(a, b)


@pytest.mark.cluster
def test_a_loader_that_is_gone_is_named(rows: data.Dataset) -> None:
    with loader({"train": rows}) as (server, _):
        batches = remote(server, deadline=1.0).batches()
        next(batches)
    with pytest.raises(ExchangeError, match=r"loader 3 at .* has not responded for 1 s"):
        list(batches)


def test_a_batch_beyond_the_limit_of_a_message_is_refused(
    rows: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("satrap.data.remote.server.MAX_BYTES", 1000)
    with (
        loader({"train": rows}) as (server, _),
        pytest.raises(ConfigError, match=r"reduce data\.batch_size"),
    ):
        list(remote(server).batches())


def test_a_loader_is_no_shard(rows: data.Dataset) -> None:
    with loader({"train": rows}) as (server, _), pytest.raises(ConfigError, match="holds no embedding rows"):
        ServersExchange([server.address], [Table("a", dim=2, optimizer=SGD(lr=1.0))])


def test_a_loader_says_what_tells_whether_rows_are_the_same(
    rows: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FINGERPRINTS", 2)
    for number in range(5):
        pd.DataFrame(columns(10)).to_csv(tmp_path / f"{number}.csv", index=False)
    files = data.read(f"{tmp_path}/*.csv", SCHEMA)
    with loader({"train": files, "test": rows}) as (server, _):
        assert remote(server).fingerprint() == files.fingerprint()
        assert remote(server, "test", worker=1, workers=2).fingerprint() == rows.fingerprint()
        assert len(list(remote(server, "test").batches())) == len(list(rows.batches()))
        (tmp_path / "3.csv").unlink()
        with pytest.raises(DataError, match="cannot read the file"):
            remote(server).fingerprint()


def test_a_loader_that_restarts_while_it_tells_is_asked_again(
    rows: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, tries = RemoteData._fingerprints, list[None]()

    def once_lost(self: RemoteData, client: Any) -> Any:
        tries.append(None)
        if len(tries) == 1:
            raise ForgottenError("the loader has restarted")
        return tell(self, client)

    monkeypatch.setattr(RemoteData, "_fingerprints", once_lost)
    with loader({"test": rows}) as (server, _):
        assert remote(server, "test").fingerprint() == rows.fingerprint()
    assert len(tries) == 2
