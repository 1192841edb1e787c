"""Finding ids: buckets, notes of uses, misses, against the sequential model."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.retention import Eviction
from satrap.store.gpu import index as host
from satrap.store.gpu import layout
from tests.store.gpu.both import Both, random_ids

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("tables", [1, 3])
def test_new_and_known_ids(tables: int) -> None:
    rng = np.random.default_rng(0)
    both = Both(tables, 3000)
    for n in (300, 1000, 0, 257):
        both.request(random_ids(rng, n, tables, 500))
    both.peek(random_ids(rng, 300, tables, 700))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_missing_ids_are_listed_whatever_their_number(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_KEYS", 16)
    rng = np.random.default_rng(n)
    known, new = random_ids(rng, 40), random_ids(rng, n)
    both = Both(1, 200, capacity=110)
    both.request(known)
    assert both.peek(known + new).count(-1) == n
    assert both.peek(new) == [-1] * n


def test_the_first_and_the_last_id_and_hash() -> None:
    both = Both(2, 100)
    edges = [(t, i) for t in (0, 1) for i in (0, 2**64 - 1)]
    edges += [both.hashed(h, t) for t in (0, 1) for h in (0, 2**64 - 1, 2**63, 2**32 - 1)]
    assert -1 not in both.request(edges * 3)
    assert -1 not in both.peek(edges)


def test_a_key_of_zeros_is_not_in_an_empty_index() -> None:
    both = Both(1, 10)
    assert both.peek([both.hashed(1 << 63)]) == [-1]  # its key is 0, as all memory


def test_uses_are_counted_up_to_4095_and_once_in_a_step() -> None:
    both = Both(1, 50, Eviction("lfu"))
    both.request([(0, 1), (0, 1), (0, 2)])
    both.request([(0, 1)])
    notes = {i: note >> 20 for _, i, _, note in both.model.entries()}
    assert notes == {1: 2, 2: 1}
    for bucket in both.model.buckets:
        for entry in bucket:
            if entry is not None:
                entry.note = 0xFFF00000 | entry.note & 0xFFFFF
    words = both.index.table.words[:, 8:]
    words[words != 0] = words[words != 0] | (0xFFF << 52) - (1 << 64)
    both.request([(0, 1), (0, 3)])
    assert {note >> 20 for _, i, _, note in both.model.entries() if i == 1} == {4095}


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_steps_wrap_around(policy: str) -> None:
    rng = np.random.default_rng(4)
    both = Both(1, 60, Eviction(policy))
    both.index.table.state[layout.STEP] = both.model.step = 2**32 - 5
    for _ in range(5):
        both.request(random_ids(rng, 25, 1, 90))
    assert both.model.step < 3
    assert both.index.counters()["evicted"].sum() > 0


def test_uses_without_a_policy_leave_no_note() -> None:
    both = Both(1, 50)
    for _ in range(2):
        both.request([(0, 5), (0, 6)])
    assert {note for *_, note in both.model.entries()} == {0}
