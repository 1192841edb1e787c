"""What a shard of served rows answers, and refuses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from satrap import Table
from satrap.errors import ConfigError, StoreError
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.sections import Section, pack, unpack
from satrap.optim import SGD
from satrap.rpc.client.call import told
from satrap.rpc.client.client import Client
from satrap.rpc.server.server import Server
from satrap.rpc.wire.frames import Buffer, MessageKind, as_bytes
from satrap.rpc.wire.text import pack_text
from satrap.serve.shards.kept_rows import KeptRows, RowVersions, Version
from satrap.serve.shards.rows_service import RowsService
from satrap.store import RowChunk, Shard

MAP = ShardMap(2)
IDS = np.array([1, 2, 3], np.uint64)


@pytest.fixture
def service() -> Iterator[tuple[RowsService, str]]:
    store = Shard([Table(name, dim=2, optimizer=SGD(lr=0.1)) for name in "ab"])
    store.load("b", RowChunk("b", IDS[:2], np.ones((2, 2), np.float32), np.empty((2, 0), np.float32)))
    rows = RowVersions(KeptRows(store, Version(5, "five", 1.0)), keep=1, most_bytes=1 << 20)
    found = RowsService(rows, MAP, 1, max_bytes=100)
    with Server("127.0.0.1:0", found) as server:
        yield found, server.address
    found.free()


def client(address: str, shard: int = 1, map: ShardMap = MAP) -> Client:
    return Client("shard", {0: address}, {0: {"shard": shard, "map": map.to_dict()}})


def lookup(ids: np.ndarray[tuple[int], np.dtype[np.uint64]] = IDS) -> list[Buffer]:
    return pack([Section(0, np.array([0, 1, len(ids)], np.int64), ids)])


def test_rows_of_a_version_and_how_many_ids_have_none(service: tuple[RowsService, str]) -> None:
    asker = client(service[1])
    parts = asker.ask(0, MessageKind.PEEK, [b"five", *lookup()]).result()
    assert as_bytes(parts[0]).view(np.int64).tolist() == [1, 1]  # id 1 of a, id 3 of b
    [section] = unpack(parts[1:])
    rows = as_bytes(section.rows).view(np.float32).reshape(3, 2)
    assert rows[1].tolist() == [1, 1]
    assert 0 < abs(rows[0]).max() < 0.01  # as it would start
    status = told(asker.ask(0, MessageKind.STATISTICS, [pack_text({"holds": "five"})]).result())
    assert status["versions"] == [[5, "five", 1.0]]
    assert status["groups"] == [[["a", "b"], 2]]
    assert status["rows"] == {"a": 0, "b": 2}
    assert service[0].statistics().steps == 5
    asker.close()


def test_what_cannot_be_answered_is_refused_and_the_next_request_answered(
    service: tuple[RowsService, str],
) -> None:
    asker = client(service[1])
    wrong = Section(1, np.array([0, 1], np.int64), IDS[:1])
    for parts in (
        [b"six", *lookup()],
        [b"five" * 100, *lookup()],
        [b"five", *pack([wrong])],
        [b"five", *lookup(np.arange(50, dtype=np.uint64))],  # the answer would be too large
    ):
        with pytest.raises(StoreError):
            asker.ask(0, MessageKind.PEEK, parts).result()
    with pytest.raises(StoreError, match="holds"):
        asker.ask(0, MessageKind.STATISTICS, [pack_text({})]).result()
    for kind in (
        MessageKind.LOOKUP,
        MessageKind.UPDATE,
        MessageKind.CLEAR,
        MessageKind.LOAD,
        MessageKind.EXPORT,
    ):
        with pytest.raises(StoreError, match="unknown kind"):
            asker.ask(0, kind, [b"five", *lookup()]).result()
    assert asker.ask(0, MessageKind.PEEK, [b"five", *lookup()]).result()
    asker.close()


def test_a_server_that_takes_it_for_another_shard_is_refused(service: tuple[RowsService, str]) -> None:
    for number, map in ((0, MAP), (1, ShardMap(3))):
        with pytest.raises(ConfigError, match="this is shard 1 of 2"):
            client(service[1], number, map)
