"""Inserting ids: full buckets, displacement, eviction, slots, against the sequential model."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.retention import Eviction
from satrap.store.gpu import index as host
from satrap.store.gpu.layout import CHUNK
from tests.store.gpu.both import Both, random_ids

pytestmark = pytest.mark.triton
LRU, LFU = Eviction("lru"), Eviction("lfu")


@pytest.mark.parametrize("n", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 300])
@pytest.mark.parametrize("width", [2, 1024])
def test_any_number_of_new_ids(n: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SEGMENT", width)
    both = Both(2, 1000)
    slots = both.request(random_ids(np.random.default_rng(n), n, 2))
    assert slots == list(range(n))  # in the order of keys


def test_one_id_many_times() -> None:
    both = Both(1, 10)
    assert both.request([(0, 3)] * 900) == [0]


def test_ids_of_one_bucket_go_to_their_second() -> None:
    both = Both(1, 400)
    both.request(both.sharing(3, 30))
    assert both.index.refused == 0
    assert {entry // 8 for entry, *_ in both.image()} > {3}


def test_ids_of_two_buckets_displace_others() -> None:
    both = Both(1, 400)
    rng = np.random.default_rng(0)
    both.request(both.sharing(3, 5) + random_ids(rng, 150))
    both.request(both.sharing(3, 14, second=8))
    assert both.model.moved > 0
    # 16 entries, all of whose rows have these two buckets, are all that such ids get.
    many = both.sharing(20, 30, second=4)
    assert both.request(many).count(-1) == 14
    assert both.index.refused == 14
    assert both.request(many[:3] + random_ids(rng, 3)).count(-1) < 4


def test_a_very_full_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LARGEST_LOAD", 0.97)
    both = Both(2, 500)
    rng = np.random.default_rng(1)
    for _ in range(5):
        both.request(random_ids(rng, 120, 2))
    assert both.model.moved > 5
    assert both.model.twice > 0
    counters = both.index.counters()
    assert counters["rows"].sum() + counters["refused"].sum() == 600
    assert counters["rows"].sum() > 480


@pytest.mark.parametrize("eviction", [None, LRU, LFU], ids=["none", "lru", "lfu"])
def test_a_full_index(eviction: Eviction | None) -> None:
    rng = np.random.default_rng(1)
    both = Both(2, 300, eviction)
    for _ in range(5):
        both.request(random_ids(rng, 130, 2, 500))
    assert both.index.counters()["rows"].sum() == 300


@pytest.mark.parametrize("eviction", [LRU, LFU], ids=["lru", "lfu"])
def test_full_buckets_evict_the_row_that_deserves_it_most(eviction: Eviction) -> None:
    both = Both(1, 400, eviction)
    ids = both.sharing(3, 40, second=8)
    first = both.request(ids[:16])
    assert -1 not in first
    both.request(ids[4:16])
    both.request(ids[4:10])
    both.request(ids[16:30])
    gone = [i for _, i, _ in both.model.log]
    assert {i for _, i in ids[:4]} <= set(gone)  # not used since they came
    assert both.index.refused == 0


def test_rows_in_use_are_not_evicted() -> None:
    both = Both(1, 400, LRU, protected=2)
    ids = both.sharing(3, 60, second=8)
    both.request(ids[:10])
    both.request(ids[10:16])
    assert both.request(ids[16:20]) == [-1] * 4  # all were used in this request or the two before
    slots = both.request(ids[20:36])
    assert slots.count(-1) == 6  # the first ten may leave now
    assert both.index.counters()["refused"].sum() == 10


def test_a_request_larger_than_the_index() -> None:
    both = Both(1, 100, LRU)
    slots = both.request(random_ids(np.random.default_rng(3), 400))
    assert sum(slot >= 0 for slot in slots) == 100
    both.request(random_ids(np.random.default_rng(4), 400))
    assert both.index.counters()["rows"].tolist() == [100]
    assert len(both.model.log) > both.model.ring  # the log names the last only


def test_tables_with_equal_ids_and_with_equal_hashes() -> None:
    both = Both(3, 200, LRU)
    salts = both.model.salts
    same = [(t, i) for i in range(20) for t in range(3)]
    alike = [(t, i ^ salts[t]) for i in range(20) for t in range(3)]
    slots = both.request(same + alike)
    assert len(set(slots)) == len(slots) == 120
    both.request(alike[::2] + random_ids(np.random.default_rng(0), 150, 3))
    both.remove(alike[1::3])
    assert both.peek(alike).count(-1) >= 20


def test_only_admitted_ids_get_a_row() -> None:
    rng = np.random.default_rng(5)
    both = Both(2, 200)
    ids = random_ids(rng, 100, 2)
    assert both.request(ids, admitted=[]) == [-1] * 100
    assert both.request(ids, admitted=ids[::3]).count(-1) == 66
    assert -1 not in both.request(ids)


def test_free_slots_are_given_first() -> None:
    rng = np.random.default_rng(6)
    both = Both(1, 100)
    ids = random_ids(rng, 90)
    both.request(ids)
    both.remove(ids[:30])
    both.request(random_ids(rng, 20))
    assert both.index.slots == 90
    both.request(random_ids(rng, 20))
    assert both.index.slots == 100
    assert both.request(random_ids(rng, 5)) == [-1] * 5


def test_the_same_requests_give_the_same_memory() -> None:
    images = []
    for _ in range(2):
        rng = np.random.default_rng(7)
        both = Both(2, 150, LFU)
        for _ in range(3):
            both.request(random_ids(rng, 100, 2, 300))
        images.append((both.image(), both.index.lists.log.tolist(), both.index.table.state.tolist()))
    assert images[0] == images[1]
