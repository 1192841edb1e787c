import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.retention import Eviction
from satrap.store.hashes import bucket_of
from satrap.store.kernels.index.layout import PAGE_BYTES
from satrap.store.memory.directory import OVERHEAD, Budget, Directory, budget, plain_budget
from satrap.store.memory.thread_pool import ThreadPool
from tests.support.examples import examples

U = np.uint64
WORKERS = ThreadPool(1)


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


@settings(max_examples=examples(40), deadline=None)
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


def test_ids_are_found_while_tables_take_memory_from_each_other():
    """The index is too small for all rows, so that pages of one table are given up for those of another."""
    d = Directory(("a", "b", "c"), Budget(20_000, 11 * PAGE_BYTES + 14 * 20_000), Eviction(), WORKERS)
    rng, owner, none = np.random.default_rng(0), {}, np.array([], U)
    for turn in range(120):
        parts, since = [none] * 3, d.reassigned
        parts[turn // 20 % 3] = rng.integers(0, 2**63, 500).astype(U)
        slots = use(d, *parts)
        for key, table, slot in zip(*d.taken(since), strict=True):
            assert owner.pop(int(slot)) == (table, key)
        for slot, key in zip(slots.tolist(), parts[turn // 20 % 3].tolist(), strict=True):
            if slot >= 0:  # else it has got no row
                owner[slot] = turn // 20 % 3, key
        if turn % 20 == 19:
            for t in range(3):
                known = [(slot, key) for slot, (table, key) in owner.items() if table == t]
                parts = [none] * 3
                parts[t] = np.array([key for _, key in known], U)
                found, missing = d.find(*request(*parts), use=False)
                assert len(missing) == 0
                assert found.tolist() == [slot for slot, _ in known]
    assert min(d.counters()["rows"]) > 500


@pytest.mark.parametrize("eviction", [None, Eviction(), Eviction("ttl", ttl=5)], ids=str)
def test_a_budget_holds_all_its_rows_need(eviction):
    for memory in (1 << 20, 100 << 20, 10 << 30):
        rows = budget(memory, 64, 64, 3, eviction).rows
        assert rows * (64 + OVERHEAD - 5) < memory
        assert rows * (64 + OVERHEAD + 4) > 0.6 * memory


@pytest.mark.parametrize(("eviction", "each"), [(None, 83), (Eviction(), 88), (Eviction("ttl", ttl=5), 92)])
def test_the_least_budget_holds_one_row(eviction, each):
    """Beside it three first pages of the index and 32 spare ones of 2 KiB, and nine of the system's pages."""
    least = (3 + 32) * PAGE_BYTES + 9 * 4096 + each
    assert budget(least, 64, 64, 3, eviction) == Budget(1, 35 * PAGE_BYTES + 17, False, False)
    assert budget(least + each, 64, 64, 3, eviction).rows == 2
    assert budget(least + each - 1, 64, 64, 3, eviction).rows == 1
    with pytest.raises(ConfigError, match=f"budget of {least - 1} bytes") as caught:
        budget(least - 1, 64, 64, 3, eviction)
    assert caught.value.where == "group of 3 tables with 64 bytes per row"
    assert caught.value.fix == f"give this group at least {least} bytes"


def test_large_budgets_have_large_pages():
    """Rows and index may round up to 2 MiB; without eviction a row takes 19 bytes more."""
    for memory, rows_huge, index_huge in (
        ((64 << 20) - 1, False, False),
        (64 << 20, True, False),
        ((192 << 20) - 1, True, False),
        (192 << 20, True, True),
    ):
        found = budget(memory, 64, 64, 3, None)
        assert (found.huge_rows, found.huge_index) == (rows_huge, index_huge)
        pages = 2 * (2 << 20 if rows_huge else 4096) + 3 * (2 << 20 if index_huge else 4096) + 4 * 4096
        assert found.rows == (memory - 35 * PAGE_BYTES - pages) // 83
        assert found.index_bytes == 35 * PAGE_BYTES + 17 * found.rows


def test_the_machine_bounds_the_rows(monkeypatch):
    monkeypatch.setattr("satrap.store.memory.directory.machine_bytes", lambda: 1 << 20)
    assert budget(None, 70, 64, 1, None) == Budget((1 << 14) - 16, 1 << 20)
    assert budget(1 << 30, 70, 64, 1, None).rows == (1 << 14) - 16
    monkeypatch.setattr("satrap.store.memory.directory.machine_bytes", lambda: 1 << 50)
    assert budget(None, 70, 64, 1, None).rows == 2**31 - 2


def test_rows_that_stay_need_an_index_and_marks():
    index = (2 + 32) * PAGE_BYTES + 1000 * 17
    assert plain_budget(1000, 2) == (Budget(1000, index, False, False), index + 10 * 4096 + 2000)


@pytest.mark.parametrize(("rows", "piece"), [(100, 32), (1600, 50), (16 << 18, 1 << 17), (20 << 18, 1 << 17)])
def test_the_log_of_lost_slots_is_a_sixteenth_of_the_rows(rows, piece):
    assert directory(rows=rows, eviction=Eviction()).piece == piece


def test_steps_begin_again_before_they_need_33_bits():
    d = directory()
    assert d.step == 0
    d.advance()
    assert d.step == 1
    d.step = 2**32 - 3
    d.advance()
    assert d.step == 2**32 - 2
    d.advance()
    assert d.step == 1


def test_no_budget_means_the_machine():
    assert budget(None, 64, 64, 1, None).rows > 1_000_000
    with pytest.raises(ConfigError, match="too small for one row"):
        budget(50_000, 64, 64, 1, None)
