import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.optim import SGD, Adam
from satrap.schema import Table
from satrap.store import Shard

U = np.uint64


def test_a_group_is_served_by_one_call_as_its_tables_are_one_by_one():
    tables = [Table(name, dim=8) for name in "abc"]
    together, apart = (Shard(tables, optimizer=Adam(lr=0.1), seed=1) for _ in range(2))
    assert [together.group_of(name) for name in "abc"] == [(0, 0), (0, 1), (0, 2)]
    rng = np.random.default_rng(0)
    for _ in range(5):
        parts = [rng.choice(500, size, replace=False).astype(U) for size in (100, 0, 7)]
        splits = np.cumsum([0, *(len(p) for p in parts)]).astype(np.int64)
        gradients = rng.standard_normal((splits[-1], 8)).astype(np.float32)
        rows = together.lookup_group(0, np.concatenate(parts), splits)
        together.update_group(0, np.concatenate(parts), splits, gradients)
        for t, (name, part) in enumerate(zip("abc", parts, strict=True)):
            s = slice(splits[t], splits[t + 1])
            np.testing.assert_array_equal(apart.lookup(name, part), rows[s])
            apart.update(name, part, gradients[s])


def test_rows_are_written_to_a_strided_output():
    shard = Shard([Table("a", dim=16)], optimizer=SGD(lr=0.5))
    keys = np.array([5, 6, 7], U)
    block = np.zeros((3, 2, 16), np.float32)
    splits = np.array([0, 3])
    out = shard.lookup_group(0, keys, splits, out=block[:, 1])
    assert out.base is block
    np.testing.assert_array_equal(block[:, 1], shard.lookup("a", keys))
    assert not block[:, 0].any()
    shard.peek_group(0, keys, splits, out=block[:, 0])
    np.testing.assert_array_equal(block[:, 0], block[:, 1])


def test_a_group_that_is_fetched_and_loaded_elsewhere_goes_on_as_it_was():
    tables = [Table(name, dim=8, optimizer=Adam(lr=0.1)) for name in "ab"]
    first, second = (Shard(tables, seed=1) for _ in range(2))
    ids, splits = np.array([5, 6, 5, 9], U), np.array([0, 2, 4])
    rng = np.random.default_rng(0)
    first.lookup_group(0, ids, splits)
    first.update_group(0, ids, splits, rng.standard_normal((4, 8)).astype(np.float32))
    second.lookup_group(0, ids[:1], np.array([0, 1, 1]))  # is overwritten
    second.load_group(0, ids, splits, *first.fetch_group(0, ids, splits))
    gradients = rng.standard_normal((4, 8)).astype(np.float32)
    for shard in (first, second):
        shard.update_group(0, ids, splits, gradients)
    for name in "ab":
        for mine, theirs in zip(first.export(name), second.export(name), strict=True):
            np.testing.assert_array_equal(mine.ids, theirs.ids)
            np.testing.assert_array_equal(mine.weights, theirs.weights)
            np.testing.assert_array_equal(mine.state, theirs.state)
    with pytest.raises(StoreError, match="state must be"):
        second.load_group(0, ids, splits, np.zeros((4, 8), np.float32), np.zeros((4, 1), np.float32))
