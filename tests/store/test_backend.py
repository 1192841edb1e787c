"""Rows in RAM and on an SSD keep the contract of row backends."""

import numpy as np
import pytest

from satrap.optim import Adagrad, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store.backend import RowEvents
from satrap.store.row_spec import RowSpec
from tests.store.backend_contract import BACKENDS, DIM, U, run
from tests.support.covering import covering

OPTIMIZERS = [Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.1)]


@pytest.mark.parametrize(("name", "dtype"), covering(list(BACKENDS), ["float32", "bfloat16"]))
def test_random_calls_equal_the_model(name, dtype):
    run(name, RowWiseAdagrad(lr=0.1), dtype, examples=4, steps=15)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", BACKENDS)
def test_long_random_calls_equal_the_model(name, dtype, optimizer):
    run(name, optimizer, dtype, examples=40, steps=50)


@pytest.mark.parametrize("name", ["ram", "ram, lru"])
def test_nothing_is_told_where_nobody_observes(name, tmp_path, monkeypatch):
    told = []
    for event in ("made", "used", "changing", "moved", "gone"):
        monkeypatch.setattr(RowEvents, event, lambda *_, event=event: told.append(event))
    backend = BACKENDS[name](RowSpec([Table("a", dim=DIM), Table("b", dim=DIM)], Adam(lr=1), 3), tmp_path)

    def requests(start):
        for first in (start, start + 200, start):
            ids, splits = np.arange(first, first + 200, dtype=U), np.array([0, 100, 200])
            places = backend.find(ids, splits, use=True)
            backend.create(ids, splits, places, places.absent)
            backend.announce(ids, splits, places)

    requests(0)
    assert not told
    watch = RowEvents()
    backend.observers.add(watch)
    requests(1000)
    assert set(told) == ({"made", "used", "changing", "gone"} if name == "ram, lru" else {"changing", "made"})
