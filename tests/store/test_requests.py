import numpy as np

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
