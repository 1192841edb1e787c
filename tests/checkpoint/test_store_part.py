"""Two stores of half the buckets each write a checkpoint, then a delta; it reads as that of one store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from satrap.checkpoint import Checkpoint, Series
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.store_part import StorePart
from satrap.checkpoint.stores import read_store
from satrap.exchange.states import state_of
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import BUCKETS, Admission, RowChunk, Shard, bucket_of

HALVES = (range(BUCKETS // 2), range(BUCKETS // 2, BUCKETS))


class Half:
    """A store of half the buckets."""

    def __init__(self, number: int) -> None:
        admission = Admission(min_count=2, memory=4096)
        self.shard = Shard([Table("a", dim=2), Table("b", dim=2)], optimizer=SGD(lr=0.1), admission=admission)
        self.buckets, self.suffix = HALVES[number], f".shard-{number:04d}"

    def train(self, table: str, ids: range) -> None:
        whole = np.array(ids, np.uint64)
        mine = whole[np.isin(bucket_of(table, whole), self.buckets)]
        for _ in range(2):
            self.shard.lookup(table, mine)
        self.shard.update(table, mine, np.ones((len(mine), 2), np.float32))

    def part(self, *, full: bool, lost: list[int]) -> StorePart:
        cut = self.shard.changes.take(full=full, chunk_rows=64)
        deleted = None if full else {"a": np.array(lost, np.uint64)}
        return StorePart(cut.chunks, "ab", state_of(self.shard), deleted, self.suffix, self.buckets)


def save(series: Series, step: int, parts: list[StorePart]) -> None:
    def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
        return {name: entry for part in parts for name, entry in part.write(storage, folder).items()}

    deleted: dict[str, np.ndarray] | None = None if step == 1 else {}
    series.write(step, Checkpoint({}, {"w": torch.zeros(1)}, {}, (), rows=write, deleted=deleted))


def rows(chunks: Iterable[RowChunk]) -> dict[tuple[str, int], bytes]:
    return {
        (c.table, int(id_)): row.tobytes() for c in chunks for id_, row in zip(c.ids, c.weights, strict=True)
    }


def test_two_halves_are_one_checkpoint_and_one_delta(tmp_path: Path) -> None:
    halves, series = [Half(number) for number in range(2)], Series(str(tmp_path))
    for half in halves:
        half.train("a", range(500))
        half.train("b", range(500))
    save(series, 1, [half.part(full=True, lost=[]) for half in halves])
    for half in halves:
        half.train("b", range(490, 520))
    save(series, 2, [halves[0].part(full=False, lost=[]), halves[1].part(full=False, lost=[2, 3])])

    chain = open_chain(series.place(2))
    storage, delta = chain.members[1]
    both = [f"table-001.shard-000{n}.arrow" for n in range(2)]
    assert {name for name in delta.files if name.startswith("table-")} == set(both)
    expected = {key: row for half in halves for key, row in rows(half.shard.snapshot()).items()}
    assert len(expected) == 1020
    del expected["a", 2], expected["a", 3]
    assert rows(chunk for _, chunk in chain.chunks()) == expected
    for half in halves:
        own, back = state_of(half.shard), read_store(storage, delta, half.buckets)
        assert own.keys() == back.keys() > {'["a", "b"].counts'}
        assert all(np.array_equal(own[name], back[name]) for name in own)
