import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Label, Numeric, Schema, Vector
from satrap.data import hash_ids, measure, read
from satrap.data.encode.encoder import _same
from satrap.data.encode.hashing import cross_ids
from satrap.schema import MISSING_ID
from tests.data.helpers_data import error_of


def one(columns, labels=(), schema=None, **features):
    keywords = schema or {}
    (batch,) = read(columns, Schema(list(labels), features or {"a": Categorical(dim=2)}, **keywords))
    return batch


def test_features_that_share_columns_and_tables():
    batch = one(
        {"a": ["p", "q"]},
        first=Categorical(dim=2, column="a", table="t"),
        second=Categorical(dim=2, column="a", table="t"),
    )
    assert np.array_equal(batch.ids["first"].values, batch.ids["second"].values)


def test_the_same_memory_read_in_another_way_is_not_the_same():
    """Else a batch would get the ids of the dictionary before it."""
    pool = pa.array([1, 2, 3, 4])
    assert _same(pool, pool.slice(0))
    assert _same(pool.slice(1, 2), pool.slice(1, 2))
    assert not _same(pool, pa.array([1, 2, 3, 4]))
    assert not _same(pool, pool.slice(0, 3))
    assert not _same(pool.slice(0, 3), pool.slice(1, 3))
    assert not _same(pool, pool.view(pa.float64()))


def test_salt_changes_every_id():
    plain, salted = one({"a": ["p", 7 and "7"]}), one({"a": ["p", "7"]}, schema={"salt": 1})
    assert not set(plain.ids["a"].values) & set(salted.ids["a"].values)


def test_values_outside_a_vocabulary_share_an_id():
    values = ["a", "x", None, "7", "y", "a"]
    own = one({"a": values}).ids["a"].values
    for vocabulary in ("a", "7"), ("a", 7):  # a number and its text are one value
        found = one({"a": values}, a=Categorical(dim=2, vocabulary=vocabulary)).ids["a"].values
        np.testing.assert_array_equal(found[[0, 2, 3, 5]], own[[0, 2, 3, 5]])
        assert found[1] == found[4]
        assert found[1] not in own
    numbers = one({"a": [7, 8, 9]}, a=Categorical(dim=2, vocabulary=("7",))).ids["a"].values
    assert numbers[0] == own[3]
    assert numbers[1] == numbers[2] == found[1]
    bag = one(
        {"a": ["a|x|y", "", "7"]}, a=Categorical(dim=2, multi=True, separator="|", vocabulary=("a", "7"))
    )
    np.testing.assert_array_equal(bag.ids["a"].values, [own[0], found[1], found[1], own[3]])
    np.testing.assert_array_equal(bag.ids["a"].offsets, [0, 3, 3, 4])


def test_buckets_bound_the_ids_and_leave_missing_alone():
    values = [str(i) for i in range(1000)] + [None]
    batch = one({"a": values}, a=Categorical(dim=2, buckets=10))
    expected = hash_ids(values[:-1]) % np.uint64(10) + np.uint64(1)
    assert np.array_equal(batch.ids["a"].values[:-1], expected)
    assert batch.ids["a"].values[-1] == MISSING_ID


def test_boundaries():
    batch = one({"a": [-5, 0, 9.99, 10, 1e9, None]}, a=Categorical(dim=2, boundaries=(0.0, 10.0)))
    assert np.array_equal(batch.ids["a"].values, hash_ids([0, 1, 1, 2, 2, None]))
    bags = one({"a": [[1, None, 11], []]}, a=Categorical(dim=2, multi=True, boundaries=(0.0, 10.0)))
    assert np.array_equal(bags.ids["a"].values, hash_ids([1, 2]))


def test_cross():
    batch = one({"u": ["a", None], "v": [1, None]}, c=Categorical(dim=2, cross=("u", "v")))
    assert np.array_equal(batch.ids["c"].values, cross_ids([hash_ids(["a", None]), hash_ids([1, None])]))
    assert batch.ids["c"].values[1] == MISSING_ID


@pytest.mark.parametrize("separator", ["|", None])
def test_all_values_of_a_long_list_are_kept_without_max_values(separator):
    names = [str(number) for number in range(1000)]
    values = ["|".join(names)] if separator else [names]
    batch = one({"m": values}, m=Categorical(dim=2, multi=True, separator=separator))
    assert len(np.unique(batch.ids["m"].values)) == 1000


def test_max_values_keeps_the_first():
    lists = [["a", "b", "c"], [], ["d"], ["e", None, "f", "g"]]
    texts = ["a|b|c", "", "d", "e||f|g"]
    for values, separator in ((lists, None), (texts, "|")):
        batch = one({"m": values}, m=Categorical(dim=2, multi=True, max_values=2, separator=separator))
        assert batch.ids["m"].offsets.tolist() == [0, 2, 2, 3, 5]
        assert np.array_equal(batch.ids["m"].values, hash_ids(list("abdef")))


def test_multi_without_lists_is_a_bag_of_at_most_one():
    batch = one({"m": [5, None, 6]}, m=Categorical(dim=2, multi=True, separator="|"))
    assert batch.ids["m"].offsets.tolist() == [0, 1, 1, 2]


def test_labels():
    columns = {
        "a": ["p"] * 4,
        "r": [1.0, 4.0, 5.0, 3.5],
        "s": ["yes", "no", "maybe", "yes"],
        "b": [True, False, True, True],
    }
    labels = [
        Label(name="r", threshold=4),
        Label(name="s", positive=("yes",)),
        "b",
        Label(name="five", column="r", positive=("5", "1")),
        Label(name="t", column="b", positive=("True",)),
    ]
    batch = one(columns, labels)
    assert batch.labels.dtype == np.float32
    assert batch.labels.T.tolist() == [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 1], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert batch.label_mask is None


def test_masked_labels_may_be_anything():
    columns = {"a": ["p"] * 3, "y": [1, None, 9], "known": [1, 0, 0]}
    batch = one(columns, [Label(name="y", mask="known")])
    assert batch.labels[:, 0].tolist() == [1, 0, 0]
    assert batch.label_mask[:, 0].tolist() == [True, False, False]


def test_one_label_with_a_mask_leaves_the_others_known():
    columns = {"a": ["p"] * 3, "y": [1, None, 9], "z": [0, 1, 1], "known": [1, 0, 0]}
    batch = one(columns, [Label(name="y", mask="known"), "z"])
    assert batch.labels.T.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert batch.label_mask.T.tolist() == [[True, False, False], [True, True, True]]


def test_a_label_named_by_its_positive_texts_must_be_there():
    label = Label(name="y", positive=("yes",))
    error = error_of(lambda: one({"a": ["p"] * 3, "y": ["yes", None, "no"]}, [label]))
    assert "a label is missing" in str(error)
    assert "row 2, column 'y'" in str(error)


def test_weights_and_groups():
    columns = {"a": ["p", "q"], "y": [0, 1], "w": [0.5, 2], "g": ["u", None]}
    batch = one(columns, ["y"], {"weight": "w", "group": "g"})
    assert batch.weights.tolist() == [0.5, 2]
    assert np.array_equal(batch.groups, hash_ids(["u", None]))


def test_prediction_needs_no_labels():
    schema = Schema(["y"], {"a": Categorical(dim=2)}, weight="w", group="a")
    (batch,) = read({"a": ["p"]}, schema.without_labels())
    assert batch.labels is None
    assert batch.weights is None
    assert batch.groups is not None


def test_missing_numbers():
    batch = one({"n": [None, 3.0, np.nan]}, n=Numeric(transform="log1p", missing=-1))
    np.testing.assert_allclose(batch.numeric[:, 0], [-1, np.log1p(3), -1], rtol=1e-6)


def test_texts_that_mean_missing_are_not_taken_for_the_wrong_one():
    error = error_of(lambda: one({"n": ["1", "NA", "?", "oops", "NA"]}, n=Numeric()))
    assert "value 'oops' is not a number" in error.what
    assert "row 4, column 'n'" in error.where


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"y": [0, 0.5], "w": [1, 1]}, "value 0.5 is neither 0 nor 1"),
        ({"y": [0, None], "w": [1, 1]}, "a label is missing"),
        ({"y": [0, 1], "w": [1, -2]}, "value -2 is not a weight"),
        ({"y": [0, 1], "w": [1, None]}, "value nan is not a weight"),
        ({"y": [0, 1], "w": [1, np.inf]}, "value inf is infinite"),
        ({"y": ["0", "si"], "w": [1, 1]}, "value 'si' is not a number"),
        ({"y": ["0", "s" * 99], "w": [1, 1]}, f"value {'s' * 60!r} is not a number"),
        ({"y": [b"0", b"si"], "w": [1, 1]}, "value \"b'si'\" is not a number"),
    ],
)
def test_bad_values_name_the_row(columns, what):
    error = error_of(lambda: one({"a": ["p", "q"], **columns}, ["y"], {"weight": "w"}))
    assert error.what == what
    assert "row 2" in error.where


def test_a_list_is_no_number():
    assert "cannot be a number" in error_of(lambda: one({"n": [[1], [2]]}, n=Numeric())).what


NUMBER = Label(name="y", kind="regression")
COUNT = Label(name="y", kind="regression", loss="poisson")
COLOR = Label(name="y", kind="multiclass", classes=("red", "green", "7"))
FIVE = Label(name="y", kind="multiclass", classes=5)


@pytest.mark.parametrize("kind", [list, pa.array, lambda v: pa.array(v).dictionary_encode()])
def test_labels_of_other_kinds(kind):
    columns = {
        "a": ["p"] * 3,
        "price": kind([2.5, -1.0, 1e9]),
        "color": kind(["7", "red", "green"]),
        "n": kind([4, 0, 4]),
    }
    labels = [
        Label(name="x", column="price", kind="regression"),
        Label(name="color", kind="multiclass", classes=["red", "green", "7"]),
        Label(name="n", kind="multiclass", classes=5),
        Label(name="m", column="n", kind="multiclass", classes=("0", "4")),
    ]
    batch = one(columns, labels)
    assert batch.labels.dtype == np.float64
    assert batch.labels.T.tolist() == [[2.5, -1, 1e9], [2, 0, 1], [4, 0, 4], [1, 0, 1]]


@pytest.mark.parametrize(
    ("label", "value", "what"),
    [
        (NUMBER, None, "a label is missing"),
        (NUMBER, "cheap", "value 'cheap' is not a number"),
        (NUMBER, "1e39", "value 1e+39 is too large for float32"),
        (COUNT, "-3", "value -3 is negative"),
        (COLOR, "blue", "value 'blue' is not one of the classes"),
        (COLOR, None, "a label is missing"),
        (FIVE, "5", "value '5' is not one of the classes"),
        (FIVE, "0.5", "value '0.5' is not one of the classes"),
        (FIVE, "red", "value 'red' is not a number"),
    ],
)
def test_labels_that_do_not_fit_their_kind_name_the_row(label, value, what):
    fine = "red" if label is COLOR else "1"
    columns = {"a": ["p"] * 3, "y": [fine, fine, value], "known": [1, 1, 0]}
    error = error_of(lambda: one(columns, [label]))
    assert what in str(error)
    assert error.where == "dict, row 3, column 'y'"
    if what.endswith("is not a number"):
        return
    masked = Label(name="y", kind=label.kind, loss=label.loss, classes=label.classes, mask="known")
    batch = one(columns, [masked])
    assert batch.labels[:, 0].tolist() == [0 if label is COLOR else 1] * 2 + [0]
    assert batch.label_mask[:, 0].tolist() == [True, True, False]


def numbers(count=50, dim=3):
    return np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)


@pytest.mark.parametrize(
    "column",
    [
        lambda v: v,
        lambda v: v.astype(np.float64),
        lambda v: list(v),
        lambda v: pd.Series(list(v)),
        lambda v: pa.array(v.tolist(), pa.list_(pa.float32())),
        lambda v: pa.array(v.tolist(), pa.large_list(pa.float64())),
        lambda v: pa.array(v.tolist(), pa.list_(pa.float32(), 3)),
        lambda v: pa.chunked_array([v[:7].tolist(), v[7:].tolist()]),
        lambda v: [" ".join(map(str, row)) for row in v],
        lambda v: [f"[{row[0]}  {row[1]}\n {row[2]}]" for row in v],
    ],
)
def test_vectors_are_the_numbers_of_the_column_whatever_holds_them(column):
    values = numbers()
    dataset = read(
        {"v": column(values), "n": np.arange(50), "w": np.arange(50)},
        Schema([], {"n": Numeric(), "v": Vector(dim=3, separator=" "), "w": Numeric()}),
        batch_size=20,
    )
    assert dataset.schema.numeric_columns == {"n": slice(0, 1), "v": slice(1, 4), "w": slice(4, 5)}
    found = np.concatenate([batch.numeric for batch in dataset])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 1:4], values)
    np.testing.assert_array_equal(found[:, [0, 4]], np.stack([np.arange(50)] * 2, 1))


@pytest.mark.parametrize("kind", [pa.list_(pa.float16()), pa.list_(pa.int32()), pa.list_(pa.float32(), 2)])
def test_missing_vectors_and_numbers_are_zeros(kind):
    fixed = pa.types.is_fixed_size_list(kind)
    rows = [[1, 2], None, None if fixed else [], [None, 4]]
    batch = one({"v": pa.array(rows, kind)}, v=Vector(dim=2))
    assert batch.numeric.tolist() == [[1, 2], [0, 0], [0, 0], [0, 4]]
    texts = ["1,2", None, "NA", "[], 4"]
    batch = one({"v": pa.array([*texts, "[]"]).dictionary_encode()}, v=Vector(dim=2, separator=","))
    assert batch.numeric.tolist() == [[1, 2], [0, 0], [0, 0], [0, 4], [0, 0]]


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ([[1.0, 2.0], [3.0]], "a vector has 1 numbers"),
        ([[1.0, 2.0], [3.0, np.inf]], "value inf is infinite"),
        ([[1.0, 2.0], [3.0, 1e39]], "value 1e+39 is too large"),
        (["1;2", "3;x"], "value 'x' is not a number"),
        (["1;2", "3;4;5"], "a vector has 3 numbers"),
    ],
)
def test_vectors_that_cannot_be_used_name_the_row(column, what):
    error = error_of(lambda: one({"v": column}, v=Vector(dim=2, separator=";")))
    assert what in str(error)
    assert error.where == "dict, row 2, column 'v'"


@pytest.mark.parametrize(("column", "fix"), [(["1;2"], "separator"), ([1.0], "as lists")])
def test_a_column_without_vectors_is_refused(column, fix):
    error = error_of(lambda: one({"v": column}, v=Vector(dim=2)))
    assert "has no lists" in error.what
    assert fix in error.fix


def bags(jagged):
    weights = np.ones(len(jagged.values), np.float32) if jagged.weights is None else jagged.weights
    pairs = list(zip(jagged.values.tolist(), weights.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(jagged.offsets[:-1], jagged.offsets[1:], strict=True)]


TEXTS = ["a|b|c|d", None, "b||NA|a", "", "c"]


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("lists", [False, True])
def test_of_long_lists_the_first_or_last_values_are_kept(keep, lists):
    words = [[] if text is None else [w for w in text.split("|") if w not in ("", "NA")] for text in TEXTS]
    expected = [hash_ids(row[:2] if keep == "first" else row[-2:]).tolist() if row else [] for row in words]
    column = [None if text is None else text.split("|") for text in TEXTS] if lists else TEXTS
    feature = Categorical(dim=2, multi=True, separator="|", max_values=2, keep=keep)
    found = bags(one({"tags": column}, tags=feature).ids["tags"])
    assert [[value for value, _ in row] for row in found] == expected


WORDS = [["rock", "pop"], None, ["pop", "NA", "jazz"], []]
WEIGHTS = [[3, 0.5], None, [1, 9, None], []]


@pytest.mark.parametrize(
    ("columns", "arguments"),
    [
        ({"tags": WORDS, "w": WEIGHTS}, {"weights": "w"}),
        ({"tags": pa.array(WORDS), "w": pa.array(WEIGHTS, pa.large_list(pa.float16()))}, {"weights": "w"}),
        (
            {"tags": ["rock|pop", None, "pop|NA|jazz", ""], "w": ["3|0.5", None, "1|9|", ""]},
            {"weights": "w", "separator": "|"},
        ),
        (
            {"tags": ["rock:3|pop:0.5", None, "pop:1|NA:9|jazz", "NA"]},
            {"weight_separator": ":", "separator": "|"},
        ),
        ({"tags": [["rock:3", "pop:0.5"], None, ["pop:1", "NA:9", "jazz"], []]}, {"weight_separator": ":"}),
    ],
)
def test_each_value_has_its_weight(columns, arguments):
    rock, pop, jazz = hash_ids(["rock", "pop", "jazz"]).tolist()
    batch = one(columns, tags=Categorical(dim=2, multi=True, **arguments))
    assert bags(batch.ids["tags"]) == [[(rock, 3), (pop, 0.5)], [], [(pop, 1), (jazz, 1)], []]
    few = Categorical(dim=2, multi=True, max_values=1, keep="last", buckets=10**6, **arguments)
    batch = one(columns, tags=few)
    reduced = [id % 10**6 + 1 for id in (pop, jazz)]
    assert bags(batch.ids["tags"]) == [[(reduced[0], 0.5)], [], [(reduced[1], 1)], []]


@pytest.mark.parametrize(
    ("columns", "arguments", "what"),
    [
        ({"tags": ["a", "b:x"]}, {"weight_separator": ":"}, "value 'x' is not a number"),
        ({"tags": ["a:1", "b:-2"]}, {"weight_separator": ":"}, "value -2 is not a weight"),
        ({"tags": ["a", "b|c"], "w": ["1", "2"]}, {"weights": "w"}, "the row has 1 weights"),
        ({"tags": [["a"], ["b"]], "w": [[1.0], [np.inf]]}, {"weights": "w"}, "value inf is infinite"),
    ],
)
def test_weights_of_values_that_cannot_be_used_name_the_row(columns, arguments, what):
    feature = Categorical(dim=2, multi=True, separator="|", **arguments)
    error = error_of(lambda: one(columns, tags=feature))
    assert what in str(error)
    assert error.where.startswith("dict, row 2, column '")


@pytest.mark.parametrize("columns", [{"tags": [1, 2], "w": [[1], [1]]}, {"tags": [[1], [2]], "w": [1, 1]}])
def test_weights_are_for_lists_only(columns):
    error = error_of(lambda: one(columns, tags=Categorical(dim=2, multi=True, weights="w")))
    assert "has no lists" in error.what


@pytest.mark.parametrize("value", ["a|b", "Drama, Comedy", "1;2", "a\tb", "x | y"])
def test_a_list_in_one_text_needs_a_separator(value):
    many = Categorical(dim=2, multi=True)
    error = error_of(lambda: one({"m": ["a", value]}, m=many))
    assert error.what == f"value {value!r} would become one id"
    assert "row 2" in error.where
    sign = next(sign for sign in "|;,\t" if sign in value)
    assert f"set separator: {sign!r}" in error.fix
    assert (
        len(one({"m": ["a", value]}, m=Categorical(dim=2, multi=True, separator=sign)).ids["m"].values) == 3
    )
    assert len(one({"m": ["a", value]}, m=Categorical(dim=2)).ids["m"].values) == 2
    assert len(one({"m": ["a|", "|", ",", "A, ", None]}, m=many).ids["m"].values) == 4


def test_labels_that_are_texts_or_other_numbers_get_advice_for_labels():
    for values in (["no", "yes"], [1, 5]):
        error = error_of(lambda: one({"a": [1, 2], "y": values}, labels=["y"]))  # noqa: B023
        assert "positive" in error.fix
        assert "feature" not in error.fix


PAST = {
    "item": [["a", "b", "c"], ["d"], None, [None, "e"]],
    "level": [[1, None, 7], [2], None, [3, 1]],
    "paid": [[0.5, 1.5, None], [None], None, [2, 3.5]],
}


def past_schema(keep, **item):
    shared = {"multi": True, "pooling": "none", "separator": "|", "sequence": "past"}
    return Schema(
        [],
        {
            "item": Categorical(dim=4, **shared, max_values=2, keep=keep, **item),
            "level": Categorical(dim=4, **shared, boundaries=(1.5, 4)),
            "paid": Numeric(sequence="past", separator="|", transform="sqrt", missing=-1),
        },
    )


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("kind", ["text", "lists", "csv", "parquet"])
def test_the_columns_of_a_sequence_stay_aligned(keep, kind, tmp_path):
    cut = slice(2) if keep == "first" else slice(-2, None)
    rows = [list(zip(*row, strict=True))[cut] if row[0] else [] for row in zip(*PAST.values(), strict=True)]
    events = [event for row in rows for event in row]
    columns = PAST
    if kind in ("text", "csv"):
        columns = {
            name: [
                "" if row is None else "|".join("" if v is None else str(v) for v in row) for row in column
            ]
            for name, column in PAST.items()
        }
    if kind == "csv":
        pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    if kind == "parquet":
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    source = str(tmp_path / f"rows.{kind}") if kind in ("csv", "parquet") else columns
    [batch] = read(source, past_schema(keep)).batches()
    items, levels = hash_ids([item for item, _, _ in events]), hash_ids(np.arange(3))
    assert batch.ids["item"].values.tolist() == items.tolist()
    assert (items == MISSING_ID).sum() == 1
    expected = [
        MISSING_ID if level is None else levels[(level >= 1.5) + (level >= 4)] for _, level, _ in events
    ]
    assert batch.ids["level"].values.tolist() == expected
    paid = [-1 if number is None else math.sqrt(number) for _, _, number in events]
    assert batch.events["paid"].values.tolist() == pytest.approx(paid)
    for jagged in (*batch.ids.values(), *batch.events.values()):
        assert jagged.offsets is batch.ids["item"].offsets, "one array for all"
        assert np.diff(jagged.offsets).tolist() == [len(row) for row in rows]


def test_columns_of_a_sequence_with_other_lengths_name_row_and_column():
    columns = {**PAST, "paid": [[1, 2, 3], [1, 2], None, [1, 2]]}
    error = error_of(lambda: list(read(columns, past_schema("last")).batches()))
    assert error.what == "the list has 1 values, but 2 in column 'paid'"
    assert "row 2, column 'item'" in error.where
    columns = {**PAST, "item": [1, 2, 3, 4]}
    assert "has no lists" in error_of(lambda: list(read(columns, past_schema("last")).batches())).what


@pytest.mark.parametrize("value", ["x", "inf"])
def test_a_number_of_an_event_that_cannot_be_used_names_the_row(value):
    columns = {**PAST, "paid": ["1|2|3", "1", "", f"1|{value}"]}
    assert (
        "row 4, column 'paid'" in error_of(lambda: list(read(columns, past_schema("last")).batches())).where
    )


def test_numbers_of_events_are_measured():
    schema = past_schema("last")
    schema = schema.replace({"paid": replace(schema.features["paid"], transform="standardize")})
    found = measure(schema, read(PAST, schema)).numeric["paid"].transform[0]["standardize"]
    numbers = [n for row in PAST["paid"] for n in row or [] if n is not None]
    assert (found["mean"], found["std"]) == pytest.approx((np.mean(numbers), np.std(numbers)))


def test_a_missing_text_that_is_a_number_also_means_missing_among_numbers() -> None:
    schema = Schema([], {"n": Numeric(missing=-1.0)})
    data = read({"n": [-999.0, 2.0, 999.0]}, schema).with_options(missing=("-999", "nan", "inf"))
    batch = next(data.batches())
    assert batch.numeric is not None
    assert batch.numeric[:, 0].tolist() == [-1.0, 2.0, 999.0]
