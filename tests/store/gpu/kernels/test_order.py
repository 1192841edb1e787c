"""Runs of equal keys, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.store.gpu import order as host
from satrap.store.gpu.order import Order
from tests.store.gpu.both import DEVICE, Request, on_device, random_ids
from tests.store.gpu.model import Model, unmix

pytestmark = pytest.mark.triton


def check(request: Request, tables: int = 1, capacity: int = 0) -> None:
    """The distinct keys of a request in any order of positions, and where they are."""
    model = Model([f"t{t}" for t in range(tables)], 1, 1, 2)
    request = sorted(request, key=lambda pair: pair[0])
    n, capacity = len(request), max(capacity, len(request), 1)
    found = Order(model.tables, capacity, DEVICE).distinct(*on_device(request, tables, capacity))
    want = model.distinct(request)
    runs, starts = int(found.runs), found.starts.tolist()
    assert runs == len(want)
    hashes = found.keys[:runs].cpu().numpy().view(np.uint64) ^ np.uint64(1 << 63)
    owners = found.tables[:runs].tolist() if tables > 1 else [0] * runs
    assert list(zip(hashes.tolist(), owners, strict=True)) == want
    ids = found.ids[:runs].cpu().numpy().view(np.uint64).tolist()
    assert ids == [unmix(h) ^ model.salts[t] for h, t in want]
    number = {key: r for r, key in enumerate(want)}
    inverse = [number[model.distinct([pair])[0]] for pair in request]
    assert found.inverse[:n].tolist() == inverse
    order = found.order[:n].tolist()
    assert order == np.argsort(inverse, kind="stable").tolist()
    assert starts[0] == 0
    assert starts[: runs + 1] == np.searchsorted(np.sort(inverse), np.arange(runs + 1)).tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 129])
def test_any_number_of_positions(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_BLOCK", 64)
    rng = np.random.default_rng(n)
    check(random_ids(rng, n), capacity=130)
    check(random_ids(rng, n, span=9))
    check([(0, 7)] * n, capacity=128)


def test_runs_that_end_at_the_edges_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_BLOCK", 16)
    model = Model(["t0"], 1, 1, 2)
    ids = [i for _, i in sorted((model.distinct([(0, i)]), i) for i in range(6))]
    for lengths in ([15, 1, 16, 17, 31, 1], [16, 16, 16, 16, 1, 1], [1, 15, 17, 15, 48, 2]):
        check([(0, i) for i, length in zip(ids, lengths, strict=True) for _ in range(length)])


def test_the_first_and_the_last_id_and_hash() -> None:
    model = Model(["t0", "t1"], 1, 1, 2)
    edges = [0, 2**64 - 1, *(unmix(h) ^ salt for h in (0, 2**64 - 1, 2**63) for salt in model.salts)]
    check([(0, i) for i in edges] * 2, capacity=40)  # padding sorts with the last hash
    check([(t, i) for t in (0, 1) for i in edges] * 2, 2, capacity=60)


@pytest.mark.parametrize("tables", [2, 3, 4, 5, 33])
def test_tables_with_equal_ids(tables: int) -> None:
    rng = np.random.default_rng(tables)
    check(random_ids(rng, 500, tables, 40), tables)


def test_tables_without_positions() -> None:
    for present in ([1, 4], [0], [5], [2, 3]):
        check([(t, i) for t in present for i in (1, 2, 2)], 6, capacity=20)


def test_tables_with_equal_hashes() -> None:
    salts = Model(["t0", "t1", "t2"], 1, 1, 2).salts
    check([(t, i ^ salts[t]) for i in range(20) for t in (2, 0, 1, 0)], 3)
