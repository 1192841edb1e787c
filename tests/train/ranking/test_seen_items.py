"""The items of training rows by user, against sets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import satrap
from satrap.batch import Batch, one_id_each
from satrap.pairs import TrainedEvents
from satrap.train.ranking import seen_items
from satrap.train.ranking.seen_items import SeenItems

SCHEMA = satrap.Schema(["liked"], {name: satrap.Categorical(dim=2) for name in ("user", "item")})
IDS = st.integers(0, 6)


class Rows:
    """Batches of three rows."""

    def __init__(self, rows: list[tuple[int, int, int]]) -> None:
        self.rows = rows

    def batches(self) -> Any:
        for start in range(0, len(self.rows), 3):
            user, item, liked = np.array(self.rows[start : start + 3]).T
            ids = {"user": one_id_each(user.astype(np.uint64)), "item": one_id_each(item.astype(np.uint64))}
            yield Batch(len(user), ids, labels=liked[:, None].astype(np.float32))


def found(seen: SeenItems, ids: list[int]) -> list[list[int]]:
    items, ends = seen(np.array(ids, np.uint64))
    return [items[a:b].tolist() for a, b in pairwise(ends)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(IDS, IDS, st.integers(0, 1)), max_size=30), st.lists(st.integers(0, 8), max_size=5))
def test_users_have_the_different_items_of_their_liked_rows(rows: Any, ids: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(seen_items, "PAIRS", 4)
        seen = SeenItems.of(Rows(rows), "user", "item")
    wanted = [
        sorted({i for u, i, liked in rows if u == user and i and liked}) if user else [] for user in ids
    ]
    assert found(seen, ids) == wanted


def test_events_that_a_model_predicts_are_seen() -> None:
    past = satrap.Categorical(dim=2, multi=True, pooling="none", sequence="past", table="item", max_values=9)
    label = satrap.Label(name="seen", implicit=True)
    schema = satrap.Schema([label], {**SCHEMA.features, "past": past})
    rows = {"user": ["u", "v", "u"], "item": ["a", "b", "c"], "past": [["c", "d"], [], ["a", None]]}
    data = satrap.data.read(rows, schema, batch_size=2)
    [batch] = data.with_options(batch_size=9).batches()
    (u, v, _), (a, b, c) = (batch.ids[name].values.tolist() for name in ("user", "item"))
    d = int(batch.ids["past"].values[1])
    assert found(SeenItems.of(data, "user", "item"), [u, v]) == [sorted([a, c]), [b]]
    every = SeenItems.of(data, "user", "item", TrainedEvents({"past": "item"}))
    assert found(every, [v, u, 5]) == [[b], sorted([a, c, d]), []]
