"""Which features form a sequence, and what they must have in common."""

from __future__ import annotations

from typing import Any

import pytest

from satrap.errors import ConfigError
from satrap.schema import Categorical, Feature, Numeric, Schema
from satrap.sequences import SequenceGroup


def event(**changes: Any) -> Categorical:
    return Categorical(**{"dim": 4, "multi": True, "pooling": "none", "sequence": "past", **changes})


def test_features_that_name_a_sequence_form_it_and_a_limit_of_one_is_that_of_all() -> None:
    features: dict[str, Feature] = {
        "user": Categorical(dim=4),
        "seen": event(),
        "price": Numeric(),
        "rating": Numeric(sequence="past"),
        "genre": event(max_values=3, keep="last"),
        "bought": event(sequence="orders"),
    }
    schema = Schema(["y"], features)
    assert schema.sequences == {
        "past": SequenceGroup(("seen", "genre"), ("rating",), 3, "last"),
        "orders": SequenceGroup(("bought",), (), None, "first"),
    }
    assert schema.numeric_columns == {"price": slice(0, 1)}
    assert schema.numeric_width == 1
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ({"a": event(pooling="sum")}, "'a': sequence cannot be combined with pooling: sum"),
        ({"a": event(multi=False)}, "'a': sequence cannot be combined with multi: false"),
        ({"a": event(cross=("x", "y"))}, "'a': sequence cannot be combined with cross"),
        ({"a": event(weights="w")}, "'a': weights cannot be combined with pooling: none"),
        ({"n": Numeric(sequence="past")}, "'n': no categorical feature is part of sequence 'past'"),
        ({"a": event(), "n": Numeric(sequence="pest")}, "'n': no categorical feature is part of sequence"),
        ({"n": Numeric(separator="|")}, "'n': separator needs sequence"),
        (
            {"a": event(max_values=3), "b": event(max_values=3, keep="last")},
            "'b' keeps the last 3 events, 'a' the first 3",
        ),
    ],
)
def test_features_that_cannot_be_aligned_are_refused(features: dict[str, Feature], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Schema(["y"], features)
