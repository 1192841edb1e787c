import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.retention import Eviction
from satrap.store.directory import OVERHEAD, Budget, Directory, budget
from satrap.store.hashes import bucket_of
from satrap.store.workers import Workers

U = np.uint64
WORKERS = Workers(1)


def directory(tables=("a", "b"), rows=1_000_000, eviction=None):
    return Directory(tables, Budget(rows, 64 << 20), eviction, WORKERS)


def request(*parts):
    return np.concatenate(parts).astype(U), np.cumsum([0, *(len(p) for p in parts)]).astype(np.int64)


def use(d, *parts):
    """Look ids up as a group does; return their slots."""
    ids, splits = request(*parts)
    d.advance()
    slots, missing = d.find(ids, splits, use=True)
    d.create(ids, splits, missing, slots)
    return slots


KEYS = st.lists(st.integers(0, 400) | st.integers(2**64 - 5, 2**64 - 1) | st.just(2**63), max_size=120)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(KEYS, KEYS), max_size=12))
def test_slots_equal_those_of_a_dict(requests):
    d, known = directory(), {}
    for parts in requests:
        slots = iter(use(d, *(np.array(part, U) for part in parts)).tolist())
        for t, part in enumerate(parts):
            for key in part:
                slot = next(slots)
                assert known.setdefault((t, key), slot) == slot
    assert sorted(known.values()) == list(range(len(known)))
    assert d.counters()["rows"].tolist() == [sum(t == k for t, _ in known) for k in (0, 1)]


def test_half_a_million_ids_are_found_and_others_are_not():
    d, keys = directory(), np.random.default_rng(0).permutation(500_000)
    slots = np.concatenate([use(d, part, part[:3]) for part in np.array_split(keys, 50)])
    assert len(np.unique(slots)) == 500_150
    ids, splits = request(np.arange(1_000_000), [])
    found, missing = d.find(ids, splits, use=False)
    np.testing.assert_array_equal(missing, np.arange(500_000, 1_000_000))
    assert len(np.unique(found[:500_000])) == 500_000


def test_an_entry_costs_less_than_24_bytes_and_few_ids_need_their_second_bucket():
    d, keys, costs = directory(("a",)), np.random.default_rng(0).integers(0, 2**64, 400_000, U), []
    for i in range(0, len(keys), 4000):
        use(d, keys[i : i + 4000])
        costs.append(d.bytes / (i + 4000))
    assert max(costs[10:]) < 24
    assert np.mean(costs[10:]) < 20.5
    before = d.counters()["second_probes"][0]
    use(d, keys)
    assert d.counters()["second_probes"][0] - before < 0.1 * len(keys)


def test_an_id_without_a_row_counts_as_probed_twice_in_its_table():
    d = directory()
    ids, splits = request(np.arange(20_000), np.arange(5))
    d.find(ids, splits, use=False)
    assert d.counters()["second_probes"].tolist() == [0, 0]
    _, missing = d.find(ids, splits, use=True)
    assert len(missing) == len(ids)
    assert d.counters()["second_probes"].tolist() == [20_000, 5]


def test_ranges_of_fixed_buckets_list_every_id_once():
    d, keys = directory(), np.arange(30_000, dtype=U)
    use(d, keys, keys[:100])
    for width in (1, 37, 4096):
        listed = [d.collect(0, first, min(first + width, 4096) - 1) for first in range(0, 4096, width)]
        ids, slots, buckets = (np.concatenate(column) for column in zip(*listed, strict=True))
        np.testing.assert_array_equal(np.sort(ids), keys)
        np.testing.assert_array_equal(buckets, bucket_of("a", ids))
        np.testing.assert_array_equal(slots, d.find(*request(ids, []), use=False)[0])


def test_refreshed_slots_equal_found_ones_however_many_rows_have_gone():
    d, rng = directory(rows=4000, eviction=Eviction()), np.random.default_rng(0)
    remembered = []
    for _ in range(60):
        keys = rng.choice(20_000, 500, replace=False)
        remembered.append((request(keys, []), use(d, keys, []), d.reassigned))
    for (ids, splits), slots, since in remembered:
        found, missing = d.find(ids, splits, use=False)
        again, absent = d.refresh(ids, splits, slots, since)
        np.testing.assert_array_equal(again, found)
        np.testing.assert_array_equal(absent, missing)


def test_the_log_names_who_lost_a_slot():
    d, rng = directory(rows=4000, eviction=Eviction()), np.random.default_rng(0)
    owner = {}
    for _ in range(80):
        keys, since = rng.choice(20_000, 100, replace=False).astype(U), d.reassigned
        slots = use(d, keys, [])
        for key, table, slot in zip(*d.taken(since), strict=True):
            assert table == 0
            assert owner.pop(int(slot)) == key
        owner.update(zip(slots.tolist(), keys.tolist(), strict=True))
    assert d.reassigned > 1000


@pytest.mark.parametrize("eviction", [None, Eviction(), Eviction("ttl", ttl=5)], ids=str)
def test_a_budget_holds_all_its_rows_need(eviction):
    for memory in (1 << 20, 100 << 20, 10 << 30):
        rows = budget(memory, 64, 64, 3, eviction).rows
        assert rows * (64 + OVERHEAD - 5) < memory
        assert rows * (64 + OVERHEAD + 4) > 0.6 * memory


def test_no_budget_means_the_machine():
    assert budget(None, 64, 64, 1, None).rows > 1_000_000
    with pytest.raises(ConfigError, match="too small for one row"):
        budget(50_000, 64, 64, 1, None)
