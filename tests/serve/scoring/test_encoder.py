"""The encoder of joined requests against the one that training uses, request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.batch import Batch
from satrap.data.encode.encoder import MISSING, Encoder
from satrap.data.encode.hashing import hash_ids
from satrap.data.source import Origin
from satrap.errors import DataError
from satrap.id_counts import IdCounts
from satrap.schema import Categorical, MeanLabel, Numeric, Schema, Vector
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.encoder import RequestEncoder, concatenated

COUNTS = IdCounts(
    np.sort(hash_ids(["-1", "0", "1", "a", "é"], 3)),
    np.arange(1, 11, dtype=np.uint32).reshape(5, 2),
    np.arange(10, dtype=np.uint32).reshape(5, 2),
)
SCHEMA = Schema(
    (),
    {
        "user": Categorical(dim=4),
        "again": Categorical(dim=4, column="user", buckets=7),
        "item": Categorical(dim=4, vocabulary=(1, 2, "three")),
        "both": Categorical(dim=4, cross=["user", "item"]),
        "tags": Categorical(dim=4, multi=True),
        "words": Categorical(dim=4, multi=True, separator="|"),
        "old": Categorical(dim=4, column="age", boundaries=(20, 40)),
        "age": Numeric(transform="log1p"),
        "price": Numeric(transform=["log1p", {"standardize": {"mean": 1.0, "std": 2.0}}], missing=-1.0),
        "cost": Numeric(transform=["log1p", {"standardize": {"mean": 1.0, "std": 2.0}}], missing=-1.0),
        "raw": Numeric(),
        "often": Numeric(column="user", count="log1p", counts=COUNTS),
        "liked": Numeric(column="user", mean_label=MeanLabel(), counts=COUNTS, missing=-2.0),
        "picture": Vector(dim=2),
    },
    salt=3,
)
COLUMNS = ("user", "item", "tags", "words", "age", "price", "cost", "raw", "picture")
SINGLE = ("user", "item", "age", "price", "cost", "raw")

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
texts = st.sampled_from(["", "?", "a", "1", "-1", "true", "1.50", "é", "2024-01-31"]) | st.text(max_size=3)
floats = st.floats(width=32) | st.sampled_from([0.5, 2.0, 1e300, -1.0])
numbers = st.none() | st.integers(-3, 99) | st.floats(-1e6, 1e6) | st.sampled_from([2**53 + 1, 1e300])
alike = {
    "integers": integers,
    "large": st.integers(2**63, 2**64 - 1),
    "texts": texts,
    "floats": floats,
    "holes": st.none() | integers,
    "nothing": st.none(),
    "truths": st.booleans(),
    "mixed": integers | floats | texts | st.none() | st.booleans(),
}


@st.composite
def requests(draw: st.DrawFn) -> list[ScoreRequest]:
    found = []
    usual = {name: draw(st.sampled_from(["integers", "texts", *alike])) for name in SINGLE[:2]}
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 4))
        kinds: dict[str, Any] = {
            name: alike[kind if draw(st.booleans()) else draw(st.sampled_from(list(alike)))]
            for name, kind in usual.items()
        }
        kinds |= {name: numbers for name in SINGLE[2:]}
        kinds["tags"] = st.lists(st.integers(0, 9), max_size=3)
        kinds["words"] = st.lists(st.sampled_from(["x", "y", "?"]), max_size=3).map("|".join)
        kinds["picture"] = st.lists(st.floats(-9, 9), min_size=2, max_size=2)
        shared = draw(st.sets(st.sampled_from(COLUMNS[1:])))
        found.append(
            ScoreRequest(
                size,
                {name: draw(kinds[name]) for name in COLUMNS if name in shared},
                {
                    name: draw(st.lists(kinds[name], min_size=size, max_size=size))
                    for name in COLUMNS
                    if name not in shared
                },
            )
        )
    return found


def by_training(asked: list[ScoreRequest]) -> Batch:
    encode = Encoder(SCHEMA, missing=MISSING)
    return concatenated(
        [encode(request.table(COLUMNS), Origin("items", np.arange(request.size))) for request in asked]
    )


ENCODER = RequestEncoder(SCHEMA, MISSING)


def with_arrays(asked: list[ScoreRequest], some: int) -> list[ScoreRequest]:
    """Return requests that have some of their lists of one type as arrays, as the JSON protocol does."""

    def given(place: int, values: list[Any]) -> Any:
        kinds = set(map(type, values))
        if some >> place & 1 and kinds == {float}:
            return np.array(values)
        if some >> place & 1 and kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
            return np.array(values, np.int64)
        return values

    return [
        replace(
            request, items={name: given(i, values) for i, (name, values) in enumerate(request.items.items())}
        )
        for request in asked
    ]


@settings(deadline=None)  # the first one may compile
@given(requests(), st.sampled_from([0, -1]) | st.integers(0, 511))
def test_joined_requests_have_the_ids_and_numbers_of_training_to_the_bit(
    plain: list[ScoreRequest], some: int
) -> None:
    asked = with_arrays(plain, some)
    try:
        expected = by_training(plain)
    except DataError:
        try:
            ENCODER(asked)
        except DataError:
            return
        raise AssertionError("training refuses these values") from None
    found = ENCODER(asked)
    assert list(found.ids) == list(expected.ids)
    for name, jagged in expected.ids.items():
        np.testing.assert_array_equal(found.ids[name].values, jagged.values, err_msg=name)
        rows = np.arange(expected.size + 1)
        mine, theirs = found.ids[name].offsets, jagged.offsets
        np.testing.assert_array_equal(rows if mine is None else mine, rows if theirs is None else theirs)
    assert expected.numeric is not None
    assert found.numeric is not None
    assert found.numeric.tobytes() == expected.numeric.tobytes()


def test_what_is_plain_goes_the_short_way() -> None:
    """Else the encoder would be right, and slow."""
    encoder = RequestEncoder(
        Schema((), {k: f for k, f in SCHEMA.features.items() if k in ("user", "both", "item", "age", "raw")}),
        MISSING,
    )
    encoder._encoders = None  # type: ignore[assignment]
    found = encoder(
        [
            ScoreRequest(2, {"user": 5}, {"item": [1, 2], "age": [3, None], "raw": [0.5, 2]}),
            ScoreRequest(1, {"user": 6, "age": 4}, {"item": [1], "raw": [3]}),
        ]
    )
    assert found.size == 3
    texts = encoder([ScoreRequest(2, {"user": "u", "age": 1.5}, {"item": ["x", ""], "raw": [1, 2]})])
    assert texts.ids["item"].values[1] == 0


def test_clients_do_not_decide_how_much_is_kept() -> None:
    names = [f"c{i}" for i in range(9)]
    encoder = RequestEncoder(Schema((), {name: Categorical(dim=4) for name in names}), MISSING)
    for chosen in range(1, 200):
        values = {name: [True if chosen >> i & 1 else 1] for i, name in enumerate(names)}
        encoder([ScoreRequest(1, {}, values)])
    assert len(encoder._encoders) <= 64
