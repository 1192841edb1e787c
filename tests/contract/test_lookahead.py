"""Lookups that are issued early see what they would see in their turn, to the bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange import Lookup
from satrap.optim import FTRL, RowWiseAdagrad
from satrap.schema import Table
from tests.contract.parties import (
    TABLES,
    assert_equal_contents,
    gradients_for,
    random_requests,
    request,
    train,
)
from tests.support.exchanges import HALF, ahead, opened

OTHERS = [
    Table("a", dim=4, optimizer=RowWiseAdagrad(lr=0.1)),
    Table("b", dim=4, optimizer=RowWiseAdagrad(lr=0.1)),
    Table("c", dim=17, optimizer=FTRL(lr=0.1)),
]
KINDS = ("local", "servers-1", "servers-3", "collective-1", "mixed-4")


OF_TABLES = {"adagrad": TABLES, "16-bit": HALF, "others": OTHERS}
QUICK = {
    ("local", 4, "16-bit"),
    ("local", 4, "others"),
    ("servers-1", 4, "others"),
    ("servers-3", 4, "16-bit"),
    ("collective-1", 4, "16-bit"),
    ("mixed-4", 4, "others"),
}


@pytest.mark.parametrize(
    ("kind", "steps_ahead", "optimizers"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(KINDS, (1, 4), OF_TABLES)
    ],
)
def test_rows_are_those_of_lookups_in_their_turn(kind: str, steps_ahead: int, optimizers: str) -> None:
    tables = OF_TABLES[optimizers]
    with opened(kind, tables) as sync, ahead(kind, tables) as early:
        for part in range(2):  # the second time there are rows, and counters, already
            wanted = train(sync, steps=10, seed=part)
            found = train(early, steps=10, seed=part, ahead=steps_ahead)
            for x, y in zip(wanted, found, strict=True):
                np.testing.assert_array_equal(x, y)
        assert_equal_contents(sync, early)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_are_refused_or_empty_change_nothing(kind: str) -> None:
    rng = np.random.default_rng(5)
    batches = [random_requests(rng) for _ in range(12)]
    steps = [(b, gradients_for(rng, b)) for b in batches]
    with opened(kind) as sync, ahead(kind) as early:
        wanted, found = [], []
        for number, (batch, gradients) in enumerate(steps):
            lookup = sync.lookup(batch, create=True)
            wanted += lookup.result()
            if number % 3:
                sync.apply(lookup, gradients, lr_scale=1.0)
            else:
                sync.apply(Lookup(()), [], lr_scale=1.0)
        waiting = [early.lookup(batch, create=True) for batch, _ in steps[:2]]
        for number, (_, gradients) in enumerate(steps):
            lookup = waiting.pop(0)
            found += lookup.result()
            if number % 3:
                early.apply(lookup, gradients, lr_scale=1.0)
            else:
                early.apply(Lookup(()), [], lr_scale=1.0)
            if number + 2 < len(steps):
                waiting.append(early.lookup(steps[number + 2][0], create=True))
        for x, y in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(x, y)
        assert_equal_contents(sync, early)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_were_loaded_in_between_are_seen(kind: str) -> None:
    with opened(kind) as sync, ahead(kind) as early:
        for exchange, n in ((sync, 0), (early, 2)):
            train(exchange, steps=6, seed=6, ahead=n)
            for table, chunk in list(exchange.rows.cut(still=True)):
                chunk.weights[:] += 1
                exchange.rows.load(table, chunk)
        for x, y in zip(train(sync, steps=6, seed=7), train(early, steps=6, seed=7, ahead=2), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_looking_without_creating_sees_what_was_issued(kind: str) -> None:
    with ahead(kind) as early:
        wanted = [request(0, [1, 2], [3]), request(1, [4])]
        lookup = early.lookup(wanted, create=True)
        before = [rows.copy() for rows in lookup.result()]
        early.apply(lookup, [np.ones_like(rows) for rows in before], lr_scale=1.0)
        after = early.lookup(wanted, create=False).result()
        assert all((x != y).all() for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_no_staleness_is_reported(kind: str) -> None:
    with ahead(kind) as early:
        train(early, steps=10, seed=8, ahead=3)
        traffic = early.telemetry.traffic()
        assert (traffic.own, traffic.others, traffic.waiting) == ({0: 10}, {0: 10}, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "value"), [(3, np.nan), (2, 1.0)])
def test_an_update_that_is_refused_is_told_to_all_who_wait(kind: str, rows: int, value: float) -> None:
    with ahead(kind) as early:
        wanted = [request(0, [1, 2], [3])]
        lookup, waits = (early.lookup(wanted, create=True) for _ in range(2))
        before = [one.copy() for one in lookup.result()]
        early.apply(lookup, [np.full((rows, 4), value, np.float32)], lr_scale=1.0)
        with pytest.raises(StoreError, match=r"NaN|float32"):
            waits.result(20)
        with pytest.raises(StoreError, match=r"NaN|float32"):
            early.flush()
        for x, y in zip(before, early.lookup(wanted, create=False).result(), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lookup_that_is_refused_is_told(kind: str) -> None:
    with ahead(kind) as early, pytest.raises(StoreError, match="group 5"):
        early.lookup([request(5, [1])], create=True).result()
