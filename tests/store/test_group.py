"""What a group refuses, at the brink."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from satrap.errors import ConfigError, StoreError
from satrap.optim import SGD
from satrap.retention import Admission
from satrap.schema import Table
from satrap.store import Eviction, Shard, Tier
from satrap.store.admission import AdmissionGate
from satrap.store.group import _left_for_rows, check_room

U = np.uint64


def test_counts_of_admission_take_half_of_a_budget_at_most() -> None:
    gate = AdmissionGate(Admission(min_count=2, memory=1024), 1, ("a",))
    assert [_left_for_rows(None, gate), _left_for_rows(5, None), _left_for_rows(2048, gate)] == [
        None,
        5,
        1024,
    ]
    with pytest.raises(ConfigError, match="take 1024 bytes of a table group's memory budget of 2047"):
        _left_for_rows(2047, gate)
    assert _left_for_rows(2047, AdmissionGate(Admission(), 1, ("a",))) == 2047  # nothing is counted


def test_there_is_room_for_as_many_rows_as_the_budget_holds() -> None:
    tables = [Table("a", dim=4), Table("b", dim=4)]
    with closing(Shard(tables, optimizer=SGD(lr=1), memory=300_000)) as store:
        store.lookup("a", np.arange(10, dtype=U))
        [group] = store.groups
        room = group.directory.room
        assert room == group.directory.limit - 10 > 20
        ids = np.arange(10 + room, dtype=U)
        check_room(group, ids, np.array([0, len(ids), len(ids)]))  # ten of them have a row
        twice = np.concatenate([ids, ids[-5:]])
        check_room(group, twice, np.array([0, len(twice), len(twice)]))
        with pytest.raises(StoreError) as caught:
            check_room(group, ids, np.array([0, 0, len(ids)]))
        assert caught.value.what == f"no room for {room + 10} more rows: 10 rows use {group.bytes} bytes"
        assert caught.value.fix is not None
        assert "embedding.memory" in caught.value.fix
        both = np.concatenate([ids[10:], ids[:1]])  # an id of each table
        with pytest.raises(StoreError, match=f"no room for {room + 1} more rows"):
            check_room(group, both, np.array([0, room, room + 1]))
    with closing(Shard(tables, optimizer=SGD(lr=1), memory=300_000, eviction=Eviction())) as store:
        check_room(store.groups[0], ids, np.array([0, 0, len(ids)]))


def test_a_store_that_cannot_be_made_leaves_no_file_open(tmp_path: Path) -> None:
    tables = [Table("a", dim=4), Table("b", dim=8, memory=2000)]
    with pytest.raises(ConfigError) as caught:
        Shard(
            tables,
            optimizer=SGD(lr=1),
            memory=1 << 20,
            eviction=Eviction(),
            tier=Tier(str(tmp_path), 1 << 16),
        )
    assert caught.value.where is not None
    assert caught.value.where.startswith("group of b")  # that of a was made
    paths = [os.readlink(file.path) for file in os.scandir("/proc/self/fd") if os.path.lexists(file.path)]
    assert [path for path in paths if path.startswith(str(tmp_path))] == []
