from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from satrap.errors import ConfigError, StoreError
from satrap.optim import SGD, Adagrad, Adam, RowWiseAdagrad
from satrap.retention import Eviction
from satrap.schema import Table
from satrap.store import RowChunk, Shard, bucket_of
from satrap.store.shard import check_lookups
from satrap.store.statistics import Statistics, TableStatistics
from tests.store.oracle import DictShard
from tests.support.covering import covering

OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.01)]
U = np.uint64


def one(dim=4, optimizer=None, **arguments):
    return Shard([Table("a", dim=dim)], optimizer=optimizer or SGD(lr=0.5), **arguments)


def ids(*values):
    return np.array(values, U)


@pytest.mark.parametrize(
    ("dim", "optimizer"), covering([1, 3, 16, 17, 40], OPTIMIZERS), ids=lambda o: getattr(o, "name", None)
)
def test_random_requests_equal_a_dict_of_rows(optimizer, dim):
    rng = np.random.default_rng(dim)
    shard = Shard([Table("a", dim=dim), Table("b", dim=dim)], optimizer=optimizer, seed=5)
    model = DictShard(dim, {"a": optimizer, "b": optimizer}, lambda table, keys: shard.peek(table, keys)[0])
    for _ in range(60):
        table = rng.choice(["a", "b"])
        keys = rng.integers(0, 300, rng.integers(0, 80)).astype(U)
        if rng.random() < 0.5:
            np.testing.assert_allclose(
                model.lookup(table, keys), shard.lookup(table, keys), rtol=2e-6, atol=1e-7
            )
        else:
            gradients = rng.standard_normal((len(keys), dim)).astype(np.float32)
            scale = float(rng.choice([1.0, 0.25]))
            shard.update(table, keys, gradients, lr_scale=scale)
            model.update(table, keys, gradients, scale)
    for table in ("a", "b"):
        keys = np.array(sorted(model.rows[table]), U)
        found = shard.peek(table, keys)
        assert found[1].all()
        np.testing.assert_allclose(found[0], model.lookup(table, keys), rtol=2e-6, atol=2e-7)
        counts = shard.statistics().tables[table]
        assert (counts.rows, counts.dropped) == (len(keys), model.dropped[table])


def test_duplicates_take_one_step_with_their_sum():
    shard = one(dim=2, optimizer=Adagrad(lr=1.0))
    shard.lookup("a", ids(7))
    before = shard.lookup("a", ids(7))
    shard.update("a", ids(7, 7, 7), np.array([[1, 0], [2, 0], [-1, 4]], np.float32))
    np.testing.assert_allclose(shard.lookup("a", ids(7)), before - 1.0, rtol=1e-6)


def test_an_id_without_a_row_loses_only_its_own_gradient():
    shard = one(dim=2)
    before = shard.lookup("a", ids(1, 3))
    gradients = np.array([[1, 1], [50, 50], [3, 3]], np.float32)
    shard.update("a", ids(1, 2, 3), gradients)
    rows, found = shard.peek("a", ids(1, 2, 3))
    np.testing.assert_allclose(rows[[0, 2]], before - 0.5 * gradients[[0, 2]], rtol=1e-6)
    assert found.tolist() == [True, False, True]
    assert shard.statistics().tables["a"].dropped == 1


def test_peek_neither_creates_nor_counts_and_reads_what_a_row_would_start_from():
    shard = one(dim=5)
    rows, found = shard.peek("a", ids(1, 2))
    counts = shard.statistics().tables["a"]
    assert not found.any()
    assert counts == TableStatistics()
    np.testing.assert_array_equal(shard.lookup("a", ids(1, 2)), rows)


def test_initial_rows_depend_on_seed_table_and_id_alone():
    keys = np.arange(200, dtype=U)
    one_order, other_order = one(seed=3), one(seed=3)
    rows = one_order.lookup("a", keys)
    np.testing.assert_array_equal(other_order.lookup("a", keys[::-1].copy())[::-1], rows)
    assert (one(seed=4).lookup("a", keys) != rows).all()
    other_table = Shard([Table("b", dim=4)], optimizer=SGD(lr=0.5), seed=3)
    assert (other_table.lookup("b", keys) != rows).all()


def test_initial_rows_are_uniform_inside_the_scale():
    shard = Shard([Table("a", dim=16, initial_scale=0.5)], optimizer=SGD(lr=1))
    rows = shard.lookup("a", np.arange(20000, dtype=U))
    assert np.abs(rows).max() < 0.5
    assert abs(rows.mean()) < 0.002
    assert abs(rows.std() - 0.5 / 3**0.5) < 0.002
    counts = np.histogram(rows, bins=20, range=(-0.5, 0.5))[0]
    assert counts.min() > 0.97 * rows.size / 20
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.03


@pytest.mark.parametrize("key", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_every_id_is_an_ordinary_id(key):
    shard = one()
    row = shard.lookup("a", ids(key))
    shard.update("a", ids(key), np.ones((1, 4), np.float32))
    np.testing.assert_allclose(shard.peek("a", ids(key))[0], row - 0.5, rtol=1e-6)


def test_groups_join_tables_of_equal_dim_and_optimizer():
    tables = [
        Table("a", dim=4),
        Table("b", dim=8),
        Table("c", dim=4, optimizer=SGD(lr=2)),
        Table("d", dim=4, optimizer=SGD(lr=1)),
    ]
    shard = Shard(tables, optimizer=SGD(lr=1))
    assert [(g.index, g.tables, g.dim) for g in shard.groups] == [
        (0, ("a", "d"), 4),
        (1, ("b",), 8),
        (2, ("c",), 4),
    ]


def test_grows_to_a_million_rows_and_loses_none():
    shard = Shard([Table("a", dim=2), Table("b", dim=2)], optimizer=SGD(lr=1.0), seed=9)
    keys = np.arange(1_000_000, dtype=U) * U(0x9E3779B97F4A7C15)
    ones = np.ones((50_000, 2), np.float32)
    for i in range(0, len(keys), 50_000):
        part = keys[i : i + 50_000]
        shard.lookup("a", part)
        shard.update("a", part, ones)
        shard.lookup("b", part[:10])
    fresh = Shard([Table("a", dim=2)], optimizer=SGD(lr=1.0), seed=9)
    for i in range(0, len(keys), 50_000):
        rows, found = shard.peek("a", keys[i : i + 50_000])
        assert found.all()
        np.testing.assert_array_equal(rows, fresh.peek("a", keys[i : i + 50_000])[0] - 1)
    statistics = shard.statistics()
    assert statistics.rows == 1_000_200
    assert statistics.tables["a"].misses == 1_000_000
    assert not shard.peek("a", keys + U(1))[1].any()
    assert (statistics.bytes - 8 * statistics.rows) / statistics.rows <= 24


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_export_and_load_carry_rows_and_state(optimizer):
    rng = np.random.default_rng(2)
    first = one(dim=3, optimizer=optimizer, seed=1)
    keys = rng.permutation(5000).astype(U)
    for _ in range(3):
        first.lookup("a", keys)
        first.update("a", keys, rng.standard_normal((5000, 3)).astype(np.float32))
    second = one(dim=3, optimizer=optimizer, seed=2)
    chunks = list(first.export("a", chunk_rows=700))
    for chunk in reversed(chunks):
        second.load("a", chunk)
    gradients = rng.standard_normal((5000, 3)).astype(np.float32)
    for shard in (first, second):
        shard.update("a", keys, gradients)
    np.testing.assert_array_equal(first.peek("a", keys)[0], second.peek("a", keys)[0])
    assert second.statistics().rows == 5000
    for mine, its in zip(first.export("a"), second.export("a"), strict=True):
        for field in ("ids", "weights", "state"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(its, field))


def test_export_is_ordered_by_bucket_then_id_in_chunks_no_larger_than_asked():
    shard = one(dim=1)
    keys = np.arange(20_000, dtype=U)
    shard.lookup("a", keys)
    chunks = list(shard.export("a", chunk_rows=999))
    assert max(len(c.ids) for c in chunks) <= 999
    order = np.concatenate([c.ids for c in chunks])
    expected = keys[np.lexsort((keys, bucket_of("a", keys)))]
    np.testing.assert_array_equal(order, expected)
    assert chunks[0].table == "a"


def test_export_of_some_buckets():
    shard = one(dim=1)
    keys = np.arange(20_000, dtype=U)
    shard.lookup("a", keys)
    wanted = [0, 5, 4095]
    exported = np.concatenate([c.ids for c in shard.export("a", buckets=wanted)])
    assert set(exported.tolist()) == set(keys[np.isin(bucket_of("a", keys), wanted)].tolist())
    with pytest.raises(StoreError, match="bucket 4096 does not exist"):
        shard.export("a", buckets=[4096])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_gradients_are_refused_whole(bad):
    shard = one(dim=20)
    rows = shard.lookup("a", ids(1, 2, 3))
    gradients = np.ones((3, 20), np.float32)
    gradients[1, 17] = bad
    with pytest.raises(StoreError, match="NaN or infinite"):
        shard.update("a", ids(1, 2, 3), gradients)
    np.testing.assert_array_equal(shard.lookup("a", ids(1, 2, 3)), rows)
    assert shard.statistics().refused == 1


def test_a_full_budget_refuses_new_rows_and_changes_nothing():
    shard = one(dim=4, memory=256 * 1024)
    first = shard.lookup("a", np.arange(2000, dtype=U))
    before = shard.statistics().tables["a"]
    with pytest.raises(StoreError, match="no room"):
        shard.lookup("a", np.arange(10_000, dtype=U))
    after = shard.statistics().tables["a"]
    assert replace(after, second_probes=0) == replace(before, second_probes=0)
    np.testing.assert_array_equal(shard.lookup("a", np.arange(2000, dtype=U)), first)
    keys = np.repeat(np.arange(4000, dtype=U), 3)  # named three times, but only 4000 rows
    shard.lookup("a", keys)
    assert shard.statistics().rows == 4000
    assert shard.statistics().bytes <= 256 * 1024


def test_lookups_of_several_groups_are_checked_before_one_makes_a_row():
    shard = Shard([Table("a", dim=4), Table("b", dim=8)], optimizer=SGD(lr=0.5), memory=512 * 1024)
    known, new = np.arange(3000, dtype=U), np.arange(3000, 53_000, dtype=U)
    first, splits = (0, ids(1, 2, 3), np.array([0, 3])), np.array([0, 3000])
    for wrong in ((1, new, np.array([0, 50_000])), (2, known, splits), (1, known, np.array([0, 2]))):
        with pytest.raises(StoreError):
            check_lookups(shard, [first, wrong])
    for at in range(0, 3000, 500):
        shard.lookup("b", known[at : at + 500])
    counts = shard.statistics().tables
    with pytest.raises(StoreError, match="no room for 50000 more rows"):
        check_lookups(shard, [first, (1, new, np.array([0, 50_000]))])
    check_lookups(shard, [first, (1, known, splits)])
    assert shard.statistics().tables == counts
    assert (counts["a"].rows, counts["b"].rows) == (0, 3000)


def test_clear_forgets_rows_and_starts_again():
    shard = one()
    rows = shard.lookup("a", ids(1, 2))
    shard.update("a", ids(1, 2), np.ones((2, 4), np.float32))
    shard.clear()
    assert shard.statistics().rows == 0
    assert not shard.peek("a", ids(1, 2))[1].any()
    np.testing.assert_array_equal(shard.lookup("a", ids(1, 2)), rows)


def test_a_closed_store_says_so():
    shard = one()
    shard.close()
    shard.close()
    with pytest.raises(StoreError, match="closed"):
        shard.lookup("a", ids(1))


def test_read_only_and_strided_arrays_are_accepted():
    shard = one()
    keys = np.arange(10, dtype=U)
    keys.flags.writeable = False
    gradients = np.ones((10, 8), np.float32)[:, ::2]
    rows = shard.lookup("a", keys[::2])
    shard.update("a", keys[::2], gradients[::2])
    np.testing.assert_allclose(shard.lookup("a", keys[::2]), rows - 0.5, rtol=1e-6)


REQUESTS = {
    "ids must be uint64": lambda s: s.lookup("a", np.arange(3)),
    "ids must be uint64 with 1 axes": lambda s: s.lookup("a", np.zeros((2, 2), U)),
    "got a value of type list": lambda s: s.lookup("a", [1, 2]),
    "no table 'x'": lambda s: s.lookup("x", ids(1)),
    "group 3 does not exist": lambda s: s.lookup_group(3, ids(1), np.array([0, 1])),
    "splits must have one entry": lambda s: s.lookup_group(0, ids(1), np.array([0, 0, 1])),
    "splits must ascend": lambda s: s.lookup_group(0, ids(1), np.array([0, 2])),
    "splits must be int64": lambda s: s.lookup_group(0, ids(1), np.array([0, 1], np.int32)),
    "out must be a writable": lambda s: s.lookup_group(0, ids(1), np.array([0, 1]), out=np.zeros((1, 4))),
    "out must have contiguous rows": lambda s: s.lookup_group(
        0, ids(1), np.array([0, 1]), out=np.zeros((1, 8), np.float32)[:, ::2]
    ),
    r"gradients must be float32\[1, 4\]": lambda s: s.update("a", ids(1), np.zeros((1, 5), np.float32)),
    "gradients must be float32 with": lambda s: s.update("a", ids(1), np.zeros((1, 4))),
    "chunk_rows must be >= 1": lambda s: s.export("a", chunk_rows=0),
}


@pytest.mark.parametrize("message", REQUESTS)
def test_a_bad_request_is_one_clear_error_that_changes_nothing(message):
    shard = one()
    before = shard.lookup("a", ids(1))
    statistics = shard.statistics()
    with pytest.raises((ConfigError, StoreError), match=message):
        REQUESTS[message](shard)
    assert shard.statistics() == statistics
    np.testing.assert_array_equal(shard.peek("a", ids(1))[0], before)


def test_a_chunk_with_an_id_twice_or_another_width_is_refused():
    shard, wide = one(), one(dim=5)
    wide.lookup("a", ids(1, 2))
    chunk = next(wide.export("a"))
    with pytest.raises(StoreError, match=r"weights must be float32\[2, 4\]"):
        shard.load("a", chunk)
    chunk.ids[1] = chunk.ids[0]
    with pytest.raises(StoreError, match="duplicate ids"):
        wide.load("a", chunk)


def test_a_table_that_evicts_takes_more_rows_in_a_chunk_than_it_has_room_for():
    count, eviction = 6000, Eviction(policy="lru")
    weights = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    chunk = RowChunk("a", np.arange(1, count + 1, dtype=np.uint64), weights, np.zeros((count, 0), np.float32))
    with closing(Shard([Table("a", dim=2, optimizer=SGD(lr=1))], memory=200_000, eviction=eviction)) as shard:
        shard.load("a", chunk)
        counts = shard.statistics().tables["a"]
        assert 500 < counts.rows < count
        assert counts.evicted + counts.rows >= count
        for kept in shard.snapshot():
            np.testing.assert_array_equal(kept.weights, weights[kept.ids.astype(int) - 1])
            assert count in kept.ids


def test_rows_that_are_removed_start_again():
    with closing(Shard([Table("a", dim=2), Table("b", dim=2)], optimizer=SGD(lr=1.0), seed=3)) as store:
        ids = np.arange(5, dtype=np.uint64)
        first = store.lookup("a", ids)
        store.lookup("b", ids)
        store.update("a", ids, np.ones((5, 2), np.float32))
        store.remove("a", np.array([1, 3, 77], np.uint64))
        rows, found = store.peek("a", ids)
        assert found.tolist() == [True, False, True, False, True]
        assert (rows[[1, 3]] == first[[1, 3]]).all()
        assert (rows[[0, 2, 4]] == first[[0, 2, 4]] - 1).all()
        assert store.statistics().tables["a"].rows == 3
        assert store.statistics().tables["b"].rows == 5


def test_another_store_has_the_same_tables_and_begins_rows_as_this_one():
    ids = np.arange(5, dtype=np.uint64)
    eviction = Eviction("lru")
    with closing(
        Shard([Table("a", dim=2)], optimizer=SGD(lr=1.0), seed=3, memory=1 << 20, eviction=eviction)
    ) as store:
        first = store.lookup("a", ids)
        with closing(store.another()) as other:
            assert other.statistics().rows == 0
            assert (other.lookup("a", ids) == first).all()
            assert not other.groups[0].directory.evicts


def test_a_store_without_tables_stays_empty_until_it_is_closed():
    shard = Shard([], memory=1 << 20)
    assert repr(shard) == "Shard(tables=[], rows=0, memory=0 B)"
    assert shard.statistics() == Statistics()
    assert (list(shard.snapshot()), shard.discard([1]), shard.rows_by_bucket().shape) == ([], 0, (0, 4096))
    assert [shard.changes.take(full=full).deleted for full in (True, False)] == [{}, {}]
    shard.changes.follow()
    shard.clear()
    with pytest.raises(StoreError, match=r"(?s)the store has no table 'a'.*tables: none"):
        shard.lookup("a", ids(1))
    with pytest.raises(StoreError, match=r"group 0 does not exist \(number of groups: 0\)"):
        shard.lookup_group(0, ids(1), np.array([0, 1]))
    shard.close()
    assert repr(shard) == "Shard(closed)"
    with pytest.raises(StoreError, match="the store is closed"):
        shard.snapshot()


ARGUMENTS = {
    "has no optimizer": lambda: Shard([Table("a", dim=1)]),
    "two tables are named": lambda: Shard([Table("a", dim=1)] * 2, optimizer=SGD(lr=1)),
    "memory must be > 0": lambda: one(memory=0),
    "threads must be >= 1": lambda: one(threads=0),
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_impossible_arguments(message):
    with pytest.raises(ConfigError, match=message):
        ARGUMENTS[message]()


def test_frozen_tables_are_a_dict_that_nobody_writes_to():
    tables = [Table("a", dim=4, optimizer=SGD(lr=1.0)), Table("f", dim=4, frozen=True)]
    shard = Shard([*tables, Table("g", dim=4, frozen=True)], seed=3)
    assert [(g.tables, g.frozen) for g in shard.groups] == [(("a",), False), (("f", "g"), True)]
    rng = np.random.default_rng(0)
    keys, weights = rng.permutation(500).astype(U), rng.standard_normal((500, 4)).astype(np.float32)
    shard.load("f", RowChunk("f", keys[:300], weights[:300], np.empty((300, 0), np.float32)))
    rows = dict(zip(keys[:300].tolist(), weights[:300], strict=True))
    changes = shard.changes
    changes.follow()
    for _ in range(20):
        asked = rng.integers(0, 600, 50).astype(U)
        expected = np.stack([rows.get(key, np.zeros(4, np.float32)) for key in asked.tolist()])
        np.testing.assert_array_equal(shard.lookup("f", asked), expected)
        np.testing.assert_array_equal(shard.peek("f", asked)[0], expected)
        assert not shard.lookup("g", asked).any()
        shard.update("f", asked, np.ones((50, 4), np.float32))
    assert [len(chunk.ids) for chunk in changes.take().chunks] == []
    [chunk] = shard.export("f")
    assert {int(k): w.tobytes() for k, w in zip(chunk.ids, chunk.weights, strict=True)} == {
        k: w.tobytes() for k, w in rows.items()
    }
    counts = shard.statistics().tables["f"]
    assert (counts.rows, counts.created, counts.dropped) == (300, 300, 0)
    assert counts.unadmitted == counts.misses > 0
    assert shard.statistics().tables["g"].rows == 0
    shard.close()


def test_a_frozen_table_has_no_optimizer_and_no_initial_values():
    with pytest.raises(ConfigError, match=r"optimizer cannot be combined with frozen.*\n.*table 'f'"):
        Table("f", dim=4, frozen=True, optimizer=SGD(lr=0.5))
    assert Table("f", dim=4, frozen=True, initial_scale=0.5).initial_scale == 0.0
