"""Tables with their own memory, admission and eviction, beside each other in one store."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError, StoreError
from satrap.optim import SGD, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard, Tier
from satrap.store.grouping import shares
from tests.store.model import Model
from tests.store.shards import assert_same, content, moved

U, DIM = np.uint64, 5
STRICT = Admission(min_count=2, probability=0.7, memory=1 << 16)
OPTIMIZER = RowWiseAdagrad(lr=0.1)
SMALL = 103_000
"""Bytes in which there is room for some tens of rows."""
OWN = {
    "kept": {"eviction": None},
    "choosy": {"admission": STRICT, "memory": 4 * SMALL},
    "small": {"memory": SMALL, "eviction": Eviction("lfu")},
}
"""Beside the settings of the store: 1 MiB, lru."""


def table(name, **own):
    return Table(name, dim=DIM, dtype="bfloat16", **own)


def open_store():
    tables = [table(name, **own) for name, own in OWN.items()]
    return Shard(tables, optimizer=OPTIMIZER, seed=3, memory=1 << 20, eviction=Eviction("lru"))


class Oracle:
    """A dict of NumPy rows for each table; the store says which rows were evicted, and where."""

    def __init__(self, store):
        self.models = {
            name: Model([table(name)], OPTIMIZER, seed=3, admission=own.get("admission", Admission()))
            for name, own in OWN.items()
        }
        self.follow(store)

    def follow(self, store):
        self.known = {g.tables[0]: g.directory.reassigned for g in store.groups}

    def evicted(self, store):
        """Let go what the store gave up since; return how many rows."""
        count = 0
        for group in store.groups:
            (name,) = group.tables
            for key, t, _ in zip(*group.directory.taken(self.known[name]), strict=True):
                assert t == 0
                self.models[name].evict(name, int(key))
                count += 1
        self.follow(store)
        return count


REQUEST = st.tuples(st.sampled_from(sorted(OWN)), st.integers(0, 2**32 - 1), st.integers(1, 60))


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(REQUEST, min_size=1, max_size=25), st.integers(0, 25))
def test_random_requests_equal_dicts_of_rows(requests, move_after):
    """Each table keeps to its own settings, also in a store that goes on where another stopped."""
    follow(requests, move_after)


def test_each_table_has_what_the_others_have_not():
    rng = np.random.default_rng(5)
    requests = [(sorted(OWN)[i % 3], int(rng.integers(2**32)), 60) for i in range(90)]
    counts = follow(requests, 9)
    assert {name for name, count in counts.items() if count["evicted"]} == {"small"}
    assert {name for name, count in counts.items() if count["unadmitted"]} == {"choosy"}


def follow(requests, move_after):
    """Compare after every request; return the counters."""
    store = open_store()
    oracle = Oracle(store)
    for i, (name, seed, count) in enumerate(requests):
        if i == move_after:
            other = open_store()
            moved(store, other)
            store.close()
            store = other
            oracle.follow(store)
        rng, model = np.random.default_rng(seed), oracle.models[name]
        keys = np.unique(rng.zipf(1.3, count) % 400).astype(U)
        mine = store.lookup(name, keys)
        found = dict(zip(keys.tolist(), store.peek(name, keys)[1].tolist(), strict=True))
        gone = oracle.evicted(store)
        assert gone == 0 or name == "small"
        np.testing.assert_array_equal(mine, model.lookup(name, keys.tolist(), found.__getitem__))
        gradients = rng.standard_normal((len(keys), DIM)).astype(np.float32)
        store.update(name, keys, gradients)
        model.update(name, keys.tolist(), gradients, 1.0)
    for name, model in oracle.models.items():
        rows = model.tables[name].rows
        chunks = list(store.export(name))
        assert sorted(k for c in chunks for k in c.ids.tolist()) == sorted(rows)
        for chunk in chunks:
            for key, weights, state in zip(chunk.ids.tolist(), chunk.weights, chunk.state, strict=True):
                np.testing.assert_array_equal(weights, rows[key][0])
                np.testing.assert_array_equal(state, rows[key][1])
    store.close()
    return {name: model.tables[name].counts for name, model in oracle.models.items()}


def change(store, names, seed):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        for name in names:
            keys = rng.integers(0, 30_000, 400).astype(U)
            store.lookup(name, keys)
            store.update(name, keys, rng.standard_normal((400, DIM)).astype(np.float32))


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_budget_of_its_own_is_that_of_a_store_with_this_table_alone(policy, tiered, tmp_path):
    tier = Tier(str(tmp_path), 5 << 15) if tiered else None
    own = {
        "memory": 3 << 17,
        "eviction": Eviction(policy),
        "admission": Admission(probability=0.8),
    }
    rest = {"memory": 2 << 17, "eviction": Eviction("lru")}
    general = {"memory": 5 << 17, "eviction": Eviction("lru")}
    both = Shard([table("a", **own), table("b")], optimizer=Adam(lr=0.1), tier=tier, **general)
    for name, bounds, share in (("a", own, 3), ("b", rest, 2)):
        part = tier and tier.part(share, 5)
        alone = Shard([table(name)], optimizer=Adam(lr=0.1), tier=part, **bounds)
        for store in (both, alone):
            change(store, name, 1)
        mine, its = both.statistics().tables[name], alone.statistics().tables[name]
        assert mine == its
        assert mine.evicted > 100
        assert_same({name: content(both.snapshot())[name]}, content(alone.snapshot()))
        alone.close()
    both.close()


def test_tables_with_equal_settings_share_a_group():
    own = {"admission": STRICT, "eviction": None}
    tables = [
        table("a"),
        table("b", **own),
        table("c", admission="store", eviction=Eviction("lru")),
        table("d", **own),
        table("e", memory=1 << 20),
        table("f", memory=1 << 20),
        table("g", admission=Admission()),
    ]
    found = shares(tables, optimizer=OPTIMIZER, memory=6 << 20, eviction=Eviction("lru"))
    assert [[t.name for t in s.tables] for s in found] == [["a", "c", "g"], ["b", "d"], ["e"], ["f"]]
    rest, sizes = 4 << 20, [share.memory for share in found]
    assert sizes == [rest * 3 // 5, rest * 2 // 5, 1 << 20, 1 << 20]


def test_without_a_budget_a_third_of_the_address_space_is_shared(monkeypatch):
    own, least = table("own", memory=1 << 20), 256 << 20
    monkeypatch.setattr("satrap.store.grouping.address_bytes", lambda: least + (1 << 20))
    found = shares([own, table("a")], optimizer=OPTIMIZER)
    assert [share.memory for share in found] == [1 << 20, least // 3]
    monkeypatch.setattr("satrap.store.grouping.address_bytes", lambda: least + (1 << 20) - 1)
    assert [share.memory for share in shares([own], optimizer=OPTIMIZER)] == [1 << 20]  # asks for no other
    with pytest.raises(StoreError, match=f"leave {least - 1} bytes of address space"):
        shares([own, table("a")], optimizer=OPTIMIZER)
    monkeypatch.setattr("satrap.store.grouping.address_bytes", lambda: None)
    assert [share.memory for share in shares([own, table("a")], optimizer=OPTIMIZER)] == [1 << 20, None]


def test_all_of_the_memory_can_be_that_of_single_tables():
    tables = [table("a", memory=600), table("b", memory=400)]
    assert [share.memory for share in shares(tables, optimizer=OPTIMIZER, memory=1000)] == [600, 400]
    with pytest.raises(ConfigError, match="1000 bytes, more than the store's 999 bytes") as caught:
        shares(tables, optimizer=OPTIMIZER, memory=999)
    assert caught.value.where == "tables a, b"
    with pytest.raises(ConfigError, match="all of the store's 1000 bytes") as caught:
        shares([*tables, table("c")], optimizer=OPTIMIZER, memory=1000)
    assert caught.value.where == "tables a, b; without a budget: c"
    with pytest.raises(ConfigError, match="two tables are named 'a'"):
        shares([table("a"), table("a")], optimizer=OPTIMIZER)
    [one] = shares([table("a")], optimizer=OPTIMIZER, memory=1)
    assert one.memory == 1


def test_only_tables_that_evict_have_a_part_of_the_tier(tmp_path: Path):
    tables = [table("a"), table("b", eviction=None), table("c", memory=1 << 20)]
    found = shares(
        tables,
        optimizer=OPTIMIZER,
        memory=7 << 20,
        eviction=Eviction("lru"),
        tier=Tier(str(tmp_path), 8000),
    )
    assert [share.tier and share.tier.size for share in found] == [6000, None, 2000]


def test_a_full_table_names_its_own_budget():
    store = Shard([table("a", memory=SMALL), table("b")], optimizer=SGD(lr=0.1), seed=1)
    with pytest.raises(StoreError, match=r"increase tables\.a\.memory"):
        store.lookup("a", np.arange(10_000, dtype=U))
    store.lookup("b", np.arange(10_000, dtype=U))
    assert store.statistics().tables["b"].rows == 10_000


@pytest.mark.parametrize(
    ("tables", "store", "what"),
    [
        (
            [table("a", memory=600), table("b", memory=600)],
            {"memory": 1000},
            "own budgets take 1200 bytes, more than the store's 1000",
        ),
        ([table("a", memory=1000), table("b")], {"memory": 1000}, "all of the store's 1000 bytes"),
        ([table("a", eviction=Eviction("lru"))], {}, "eviction with policy lru needs a memory budget"),
        (
            [table("a", memory=1 << 20), table("b")],
            {"eviction": Eviction("lfu")},
            "eviction with policy lfu needs a memory budget",
        ),
        (
            [table("a", eviction=Eviction("ttl", 3)), table("b")],
            {"memory": 1 << 20, "eviction": Eviction("lru"), "tier": Tier("/tmp", 1 << 20)},
            "a tier cannot be combined with policy ttl",
        ),
        (
            [table("a", eviction=None)],
            {"memory": 1 << 20, "eviction": Eviction("lru"), "tier": Tier("/tmp", 1 << 20)},
            "a tier cannot be combined with no eviction",
        ),
    ],
)
def test_settings_that_do_not_go_together(tables, store, what):
    with pytest.raises(ConfigError, match=what):
        Shard(tables, optimizer=OPTIMIZER, **store)


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ({"memory": 0}, "table 'a': memory must be a whole number of bytes >= 1, got 0"),
        ({"memory": True}, "memory must be a whole number"),
        ({"eviction": "lru"}, "eviction must be an Eviction, 'store' or None, got 'lru'"),
        ({"admission": Eviction()}, "admission must be an Admission, 'store' or None, got"),
        ({"frozen": True, "admission": STRICT}, "admission cannot be combined with frozen: true"),
    ],
)
def test_impossible_settings_of_a_table(own, what):
    with pytest.raises(ConfigError, match=what):
        table("a", **own)
