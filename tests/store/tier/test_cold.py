"""A store with a tier against one with enough memory, or its model: equal to the bit."""

import re
import resource
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from satrap.errors import ConfigError, StoreError
from satrap.optim import Adagrad, Adam
from satrap.schema import DTYPES, Table
from satrap.store import Eviction, Shard, Tier
from satrap.store.memory.directory import plain_budget
from satrap.store.row_spec import plan
from tests.store.requests import ALL, OPTIMIZERS, SEED, STRICT, TABLE, Requests, ids
from tests.store.shards import Copy, assert_same, change, content, shard
from tests.support.covering import covering

U = np.uint64
RECORDS = 2500
"""More than the ids that random requests name."""


class Tiered(Requests):
    """The requests of an unbounded store, made of one with memory for some 70 rows; none may be lost."""

    def __init__(self, optimizer, dtype, dim, admission, eviction, path):
        self.eviction, self.path = eviction, path
        super().__init__(optimizer, dtype, dim, admission)

    def open(self):
        record = plan(self.optimizer, self.dim, self.tables[0].dtype).row_bytes
        memory = self.memory_for(70) + plain_budget(RECORDS, len(self.tables))[1]
        return super().open(eviction=self.eviction, memory=memory, tier=Tier(self.path, RECORDS * record))

    @rule(table=TABLE, seed=SEED, count=st.integers(1, 300), most=st.sampled_from([60, 1000]))
    def lookup_many(self, table, seed, count, most):
        self.lookup(table, np.random.default_rng(seed).integers(0, most, count).tolist())

    @rule(table=TABLE, seed=SEED, count=st.integers(1, 300))
    def update_many(self, table, seed, count):
        keys = np.random.default_rng(seed).integers(0, 400, count).tolist()
        self.update(table, keys, seed, 1.0, False, 1.0)

    @rule(table=TABLE, seed=SEED)
    def update_with_slots(self, table, seed):
        rng = np.random.default_rng(seed)
        keys = np.unique(rng.integers(0, 300, 40)).tolist()
        group, t = self.shard.group_of(table)
        splits = np.where(np.arange(3) > t, len(keys), 0)
        known = self.shard.lookup_slots(group, ids(keys), splits)[1]
        self.model.lookup(table, keys)
        self.lookup(table, rng.integers(0, 1000, 100).tolist())
        gradients = rng.standard_normal((len(keys), self.dim)).astype(np.float32)
        self.shard.update_group(group, ids(keys), splits, gradients, slots=known)
        self.model.update(table, keys, gradients, 1.0)

    @rule(table=TABLE, keys=st.lists(st.integers(0, 1000), max_size=50))
    def prefetch(self, table, keys):
        group, t = self.shard.group_of(table)
        self.shard.ahead.prefetch(group, ids(keys), np.where(np.arange(3) > t, len(keys), 0))

    @rule(table=TABLE)
    def load_again(self, table):
        """Rows that are there already are overwritten where they are."""
        for chunk in list(self.shard.export(table, chunk_rows=50)):
            self.shard.load(table, chunk)

    @rule()
    def go_on_elsewhere(self):
        self.move()
        counters = self.shard.statistics().tables
        for name, table in self.model.tables.items():
            assert counters[name].evicted == counters[name].refused == 0
            table.counts.update({k: getattr(counters[name], k) for k in table.counts})

    @invariant()
    def bounded(self):
        statistics = self.shard.statistics()
        rows = sum(len(table.rows) for table in self.model.tables.values())
        assert rows - statistics.tier.rows <= 110


def run(optimizer, dtype, dim, admission, eviction, path, examples, steps):
    run_state_machine_as_test(
        lambda: Tiered(optimizer, dtype, dim, admission, eviction, path),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    ("optimizer", "eviction", "dtype"),
    covering([OPTIMIZERS[i] for i in (1, 5, 7)], [Eviction("lru"), Eviction("lfu")], DTYPES),
    ids=lambda value: getattr(value, "policy", value if isinstance(value, str) else repr(value)),
)
def test_random_requests_equal_the_unbounded_model(optimizer, dtype, eviction, tmp_path):
    run(optimizer, dtype, 5, ALL, eviction, tmp_path, examples=3, steps=20)


@pytest.mark.parametrize("eviction", [Eviction("lru"), Eviction("lfu")], ids=lambda e: e.policy)
def test_random_requests_with_admission_equal_the_unbounded_model(eviction, tmp_path):
    run(Adagrad(lr=0.1), "bfloat16", 3, STRICT, eviction, tmp_path, examples=5, steps=20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("eviction", [Eviction("lru"), Eviction("lfu")], ids=lambda e: e.policy)
@pytest.mark.parametrize("admission", [ALL, STRICT], ids=["all", "strict"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_long_random_requests_equal_the_unbounded_model(optimizer, dtype, admission, eviction, tmp_path):
    run(optimizer, dtype, 19, admission, eviction, tmp_path, examples=10, steps=50)


@pytest.fixture
def small(tmp_path):
    """Return what makes stores of a sixth of the rows the requests of `change` name."""
    made = []

    def make(size=1_300_000, **arguments):
        arguments = {"memory": 1_200_000, "eviction": Eviction(), "tier": Tier(tmp_path, size)} | arguments
        made.append(shard(**arguments))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_a_store_with_a_tier_exports_the_bytes_of_an_unbounded_one(small):
    stores = shard(), small()
    for store in stores:
        change(store, np.random.default_rng(0), 10, ids=20_000)
    one, other = stores
    assert other.statistics().tier.rows > 5 * (other.statistics().rows / 10)
    assert_same(content(one.snapshot()), content(other.snapshot()))
    for mine, other_s in zip(one.snapshot(), other.snapshot(), strict=True):
        assert mine.ids.tobytes() == other_s.ids.tobytes()  # in the same parts, too
    part = dict(buckets=range(100, 1000), chunk_rows=50)
    assert_same(content(one.export("c", **part)), content(other.export("c", **part)))
    mine = one.statistics().tables
    for table, counters in other.statistics().tables.items():
        for name in ("rows", "created", "evicted", "refused", "hits", "misses", "unadmitted", "dropped"):
            assert getattr(counters, name) == getattr(mine[table], name), name


def test_a_snapshot_is_the_moment_it_was_taken(small):
    store, rng = small(), np.random.default_rng(0)
    change(store, rng, 8, ids=20_000)
    expected = content(store.snapshot(chunk_rows=1400))
    seen = []
    for chunk in store.snapshot(chunk_rows=1400):
        seen.append(chunk)
        change(store, rng, 1, ids=20_000)  # rows leave memory, come back, change and leave again
    assert_same(content(seen), expected)


def test_deltas_add_up_to_the_store(small):
    store, copy, rng = small(), Copy(), np.random.default_rng(0)
    change(store, rng, 10, ids=20_000)
    for i in range(4):
        delta, expected = store.changes.take(chunk_rows=900), content(store.snapshot())
        rows = copy.apply(delta, between=partial(change, store, rng, i % 2, ids=20_000))
        copy.assert_equal(expected)
        assert delta.full == (i == 0)
        if i % 2:
            assert 0 < rows <= 3 * 800
        change(store, rng, ids=20_000)


def test_a_delta_that_could_not_be_kept_makes_the_next_full(small):
    store, rng = small(), np.random.default_rng(0)
    change(store, rng, 10, ids=20_000)
    list(store.changes.take().chunks)
    change(store, rng, 1, ids=20_000)
    delta = store.changes.take()
    store.changes.put_back(delta)
    change(store, rng, 1, ids=20_000)
    delta, copy = store.changes.take(), Copy()
    assert delta.full
    copy.apply(delta)
    copy.assert_equal(content(store.snapshot()))


def test_what_the_file_has_no_room_for_is_evicted_and_counted(small):
    store, copy, rng = small(size=200_000, memory=600_000), Copy(), np.random.default_rng(0)
    gone = 0
    for _ in range(5):
        change(store, rng, 3, ids=20_000)
        delta = store.changes.take()
        gone += sum(len(ids) for ids in delta.deleted.values())
        copy.apply(delta)
        copy.assert_equal(content(store.snapshot()))
    counters = store.statistics()
    assert gone > 0
    for table in "abc":
        counts = counters.tables[table]
        assert counts.evicted > 0
        assert counts.rows == counts.created - counts.evicted
    assert counters.tier.bytes <= 200_000


def test_a_full_disk_refuses_the_request_and_loses_nothing(small):
    store, rng = small(), np.random.default_rng(0)
    keys = np.arange(100, dtype=U)
    store.lookup("a", keys)
    before, limits = content(store.snapshot()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot grow"):
            change(store, rng, 20, ids=20_000)
        middle = content(store.snapshot())
        with pytest.raises(StoreError, match="cannot grow"):
            store.lookup("a", np.arange(10_000, 15_000, dtype=U))
        assert_same(middle, content(store.snapshot()))
        assert set(before["a"][0].tolist()) <= set(middle["a"][0].tolist())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.lookup("a", np.arange(10_000, 15_000, dtype=U))
    assert sum(t.evicted for t in store.statistics().tables.values()) == 0


def test_clear_gives_the_disk_back(small):
    store, rng = small(), np.random.default_rng(0)
    change(store, rng, 10, ids=20_000)
    assert store.statistics().tier.bytes > 0
    store.clear()
    counters = store.statistics()
    assert counters.rows == counters.tier.rows == counters.tier.bytes == 0
    assert not list(store.snapshot())
    change(store, rng, 10, ids=20_000)
    assert store.statistics().tier.rows > 0


def test_a_row_in_the_tier_is_peeked_and_updated_where_it_is(small):
    store, other = small(), shard()
    for s in (store, other):
        s.lookup("a", np.arange(12_000, dtype=U))
    inside = store.statistics().tier.rows
    keys = np.arange(12_000, dtype=U)
    gradients = np.random.default_rng(0).standard_normal((12_000, 3)).astype(np.float32)
    for s in (store, other):
        s.update("a", keys, gradients)
    np.testing.assert_array_equal(store.peek("a", keys)[0], other.peek("a", keys)[0])
    assert store.peek("a", keys)[1].all()
    assert store.statistics().tier.rows == inside > 6_000


def test_rows_asked_for_ahead_are_counted_when_they_are_read(small):
    store = small()
    store.lookup("a", np.arange(12_000, dtype=U))
    splits = np.array([0, 100, 100])
    expected = content(store.snapshot())
    store.ahead.prefetch(0, np.arange(11_000, 11_100, dtype=U), splits)
    store.ahead.prefetch(0, np.arange(50_000, 50_100, dtype=U), splits)  # of no row
    store.ahead.settle()
    tier = store.statistics().tier
    assert (tier.prefetched, tier.prefetch_hits) == (100, 0)
    assert_same(content(store.snapshot()), expected)
    store.lookup("a", np.arange(10_950, 11_050, dtype=U))
    assert store.statistics().tier.prefetch_hits == 50


def test_a_tier_too_small_for_a_row_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="too small for one row"):
        shard(memory=400_000, eviction=Eviction(), tier=Tier(tmp_path, 50))


def one_table(path, memory, size):
    """Return a store whose records have 40 bytes."""
    table, tier = Table("a", dim=3), Tier(path, size)
    return Shard([table], optimizer=Adam(lr=0.1), memory=memory, eviction=Eviction(), tier=tier)


def test_a_tier_whose_index_leaves_no_room_for_rows_is_refused_and_told_what_fits(tmp_path):
    with pytest.raises(ConfigError, match="index of a tier") as caught:
        one_table(tmp_path, 2_000_000, 1 << 24)
    memory, size = (int(number) for number in re.findall(r"\d+", caught.value.fix))
    for fits in ((memory, 1 << 24), (2_000_000, size)):
        one_table(tmp_path, *fits).close()
    for too_much in ((memory - 10_000, 1 << 24), (2_000_000, size + 40_000)):
        with pytest.raises(ConfigError, match="index of a tier"):
            one_table(tmp_path, *too_much)


def test_all_that_the_file_has_room_for_is_found_again_within_the_budget(tmp_path):
    room = 30_000
    memory = plain_budget(room, 1)[1] + 230_000
    store, rng = one_table(tmp_path, memory, room * 40), np.random.default_rng(0)
    keys = rng.integers(0, 2**64, store.groups[0].directory.limit + room, U)
    for some in np.array_split(keys, 200):
        store.lookup("a", some)
    counts = store.statistics()
    assert counts.tables["a"].evicted == counts.tables["a"].refused == 0
    assert counts.tier.rows == room
    assert 15 * room < counts.tier.index_bytes < counts.bytes <= memory
    assert store.peek("a", keys)[1].all()
    store.close()


def test_rows_that_were_only_read_since_they_came_from_the_file_are_not_written_again(tmp_path):
    memory = plain_budget(20_000, 1)[1] + 230_000
    store, free = one_table(tmp_path, memory, 20_000 * 40), Shard([Table("a", dim=3)], optimizer=Adam(lr=0.1))
    parts = np.array_split(np.arange(10_000, dtype=U), 40)
    read, changed = parts[::2], parts[1::2]
    for some in parts:  # all but the last have left memory, and each round brings all back
        store.lookup("a", some)
        free.lookup("a", some)
    writes, before = [], store.statistics().tier.writes
    for step in range(4):
        for some in (*read, *changed):
            store.lookup("a", some)
            if step == 1 and some[0] in np.concatenate(changed):
                for one in (store, free):
                    one.update("a", some, np.full((len(some), 3), 0.5, np.float32))
        after = store.statistics().tier
        writes, before = [*writes, after.writes - before], after.writes
    inside = 10_000 - after.rows
    assert 500 < inside < 3_000
    assert writes[0] <= inside  # those that were in memory and nowhere else
    assert 3_000 < sum(writes[1:3]) <= 5_000 + inside  # each changed row once
    assert writes[3] == 0
    assert after.reads > 4 * 10_000 - 5 * inside
    assert_same(content(store.snapshot()), content(free.snapshot()))
    store.close()


def test_an_id_that_is_named_again_after_memory_had_no_room_for_it_has_one_row(tmp_path):
    memory = plain_budget(20_000, 1)[1] + 230_000
    store, free = one_table(tmp_path, memory, 20_000 * 40), Shard([Table("a", dim=3)], optimizer=Adam(lr=0.1))
    rng = np.random.default_rng(0)
    for _ in range(5):
        keys = rng.permutation(np.tile(rng.integers(0, 12_000, 3_000).astype(U), 4))
        np.testing.assert_array_equal(store.lookup("a", keys), free.lookup("a", keys))
        gradients = rng.standard_normal((len(keys), 3)).astype(np.float32)
        for one in (store, free):
            one.update("a", keys, gradients)
    mine, theirs = content(store.snapshot()), content(free.snapshot())
    assert len(mine["a"][0]) == len(theirs["a"][0])
    assert_same(mine, theirs)
    assert store.statistics().tier.rows > 1_000
    for name, count in asdict(free.statistics().tables["a"]).items():
        assert name == "second_probes" or getattr(store.statistics().tables["a"], name) == count, name
    store.close()
