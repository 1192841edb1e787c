"""A schema with histories of events."""

from __future__ import annotations

from typing import Any

from satrap.schema import Categorical, Feature, Numeric, Schema


def event(**changes: Any) -> Categorical:
    return Categorical(**{"dim": 6, "multi": True, "pooling": "none", "sequence": "past", **changes})


FEATURES: dict[str, Feature] = {
    "user": Categorical(dim=4),
    "item": Categorical(dim=6, table="items"),
    "seen": event(table="items", max_values=8, keep="last"),
    "genre": event(dim=3),
    "rating": Numeric(sequence="past"),
    "price": Numeric(),
}
SCHEMA = Schema(["y"], FEATURES)
