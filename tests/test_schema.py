"""A schema refuses what no table, reader or model could use, and comes back from plain data as it was."""

from __future__ import annotations

import copy
import json
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import satrap
from satrap.errors import ConfigError
from satrap.schema import Label, Numeric, Schema, Table


@pytest.mark.parametrize("name", [True, 3, None, ["user"]])
def test_the_name_of_a_table_is_a_text(name: Any) -> None:
    with pytest.raises(ConfigError, match="name must be a text"):
        Table(name, dim=4)


@pytest.mark.parametrize("dim", [0, -1, 4097, True, 2.0, "4"])
def test_a_dim_is_a_number_of_weights(dim: Any) -> None:
    with pytest.raises(ConfigError, match="dim must be"):
        Table("user", dim=dim)
    with pytest.raises(ConfigError, match="dim must be"):
        Schema(["y"], {"user": satrap.Categorical(dim=dim)})
    assert Table("user", dim=4096).dim == 4096


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"separator": "|"}, "multi: true"),
        ({"max_values": 3}, "multi: true"),
        ({"multi": True, "max_values": 0}, "max_values"),
        ({"cross": ("a",)}, "cross"),
        ({"boundaries": (2.0, 1.0)}, "ascend"),
        ({"boundaries": (1.0, 1.0)}, "ascend"),
        ({"buckets": 0}, "buckets"),
        ({"vocabulary": ()}, "vocabulary must have at least one value"),
        ({"vocabulary": ("1", 1)}, "no duplicates"),
        ({"vocabulary": ("a",), "cross": ("a", "b")}, "cannot be combined with"),
    ],
)
def test_an_impossible_feature_is_named(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match="'user'") as caught:
        Schema(["y"], {"user": satrap.Categorical(dim=4, **wrong)})
    assert word in str(caught.value)


def test_features_of_one_table_have_one_width() -> None:
    shared = {"a": satrap.Categorical(dim=4, table="t"), "b": satrap.Categorical(dim=8, table="t")}
    with pytest.raises(ConfigError, match="dims 4 and 8 differ"):
        Schema(["y"], shared)


def test_labels_have_names_of_their_own_and_there_are_features() -> None:
    features = {"user": satrap.Categorical(dim=4)}
    with pytest.raises(ConfigError, match="not unique"):
        Schema(["y", Label(name="y", column="other")], features)
    with pytest.raises(ConfigError, match="no features"):
        Schema(["y"], {})


@pytest.fixture
def schema() -> Schema:
    return Schema(
        ["y", Label(name="z", positive=("yes", "si"), mask="known")],
        {
            "user": satrap.Categorical(dim=16, table="people", buckets=7, vocabulary=("a", 7)),
            "age": satrap.Categorical(dim=4, boundaries=(18.0, 65.0)),
            "pair": satrap.Categorical(dim=4, cross=("user", "age")),
            "price": satrap.Numeric(transform=["log1p", {"clip": [0, 5]}], missing=-1.0),
            "text": satrap.Vector(dim=64, column="embedding", separator=";"),
        },
        weight="w",
        group="user",
        salt=3,
    )


def test_plain_data_gives_the_same_schema_back(schema: Schema) -> None:
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    assert again.table_of("user") == "people"
    assert again.table_of("age") == "age"
    assert again.categorical["pair"].cross == ("user", "age")
    assert again.numeric_columns == {"price": slice(0, 1), "text": slice(1, 65)}
    assert again.numeric_width == 65
    assert again != schema.replace({"price": satrap.Numeric()})


def test_a_schema_can_be_copied_and_sent_to_another_process(schema: Schema) -> None:
    sent = ForkingPickler.loads(ForkingPickler.dumps(schema))
    for copied in (copy.copy(schema), copy.deepcopy(schema), sent):
        assert copied == schema
        assert list(copied.features) == list(schema.features)


def test_a_schema_counts_the_outputs_of_its_labels() -> None:
    labels = [
        "y",
        Label(name="price", kind="regression", loss="huber", delta=2.0, mean=3.0, std=4.0),
        Label(name="color", kind="multiclass", classes=["red", "green", "blue"]),  # type: ignore[arg-type]
        Label(name="stars", kind="multiclass", classes=5),
    ]
    schema = Schema(labels, {"user": satrap.Categorical(dim=4)})
    assert [label.outputs for label in schema.labels] == [1, 1, 3, 5]
    assert schema.outputs == 10
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert schema.without_labels().outputs == 0
    assert schema.replace({}, labels[:2]).labels == schema.labels[:2]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"kind": "regression", "threshold": 3.0}, "threshold does not apply to kind regression"),
        ({"loss": "huber"}, "loss does not apply to kind binary"),
        ({"classes": 3}, "classes does not apply to kind binary"),
        ({"kind": "regression", "delta": 1.0}, "delta must be > 0, and needs loss: huber"),
        ({"kind": "regression", "loss": "huber", "delta": 0.0}, "delta must be > 0"),
        ({"kind": "regression", "std": 0.0}, "std must be > 0"),
        (
            {"kind": "regression", "loss": "poisson", "mean": 0.0},
            "mean must be a number (> 0 with loss: poisson)",
        ),
        ({"kind": "regression", "mean": float("nan")}, "mean must be a number"),
        ({"start_at_mean": True}, "start_at_mean does not apply to kind binary"),
        ({"mean": 0.0}, "mean must be > 0 and < 1, got 0.0"),
        ({"mean": 1.0}, "mean must be > 0 and < 1"),
        ({"kind": "multiclass", "classes": 3, "mean": 0.5}, "mean does not apply to kind multiclass"),
        ({"kind": "multiclass"}, "classes must have 2 to 4096 values, got 0"),
        ({"kind": "multiclass", "classes": 1}, "classes must have 2 to 4096 values, got 1"),
        ({"kind": "multiclass", "classes": ("a", "b", "a")}, "classes must be unique"),
    ],
)
def test_impossible_labels_are_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schema([Label(name="y", **arguments)], {"user": satrap.Categorical(dim=4)})
    assert caught.value.what.startswith("label 'y': ")
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"time": "hour", "cross": ("a", "b")}, "time cannot be combined with cross"),
        ({"time": "age"}, "time: age is a number of days"),
        ({"multi": True, "keep": "last"}, "keep: last needs max_values"),
        ({"weights": "w"}, "weights cannot be combined with multi: false"),
        (
            {"multi": True, "weights": "w", "weight_separator": ":"},
            "weights cannot be combined with weight_separator",
        ),
        ({"multi": True, "weight_separator": ":", "pooling": "max"}, "cannot be combined with pooling: max"),
        ({"multi": True, "weights": "w", "cross": ("a", "b")}, "weights cannot be combined with cross"),
    ],
)
def test_impossible_weights_and_ends_of_lists_are_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schema(["y"], {"tags": satrap.Categorical(dim=4, **arguments)})
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("kind", "arguments", "what", "fix"),
    [
        (
            satrap.Categorical,
            {"dim": 4, "pooling": "summ"},
            "pooling 'summ'",
            "did you mean 'sum'?",
        ),
        (satrap.Categorical, {"dim": 4, "keep": "newest"}, "keep 'newest'", "first, last"),
        (satrap.Categorical, {"dim": 4, "time": "minute"}, "time 'minute'", "hour, weekday, age"),
        (Numeric, {"time": "minute"}, "time 'minute'", "hour, weekday, age"),
        (Numeric, {"transform": "log"}, "transform 'log'", "use log1p, log10, "),
        (Numeric, {"transform": ["log1p", {"minmx": None}]}, "transform 'minmx'", "did you mean 'minmax'?"),
        (Label, {"name": "y", "kind": "ordinal"}, "kind 'ordinal'", "binary, regression, multiclass"),
        (Label, {"name": "y", "loss": "cubic"}, "loss 'cubic'", "squared, absolute, huber, poisson"),
        (
            Table,
            {"name": "user", "dim": 4, "dtype": "float8"},
            "dtype 'float8'",
            "float32, bfloat16, float16",
        ),
        (satrap.store.StoreConfig, {"dtype": "float8"}, "dtype 'float8'", "float32, bfloat16"),
        (satrap.store.TableSettings, {"dtype": "float8"}, "dtype 'float8'", "float32, bfloat16"),
        (satrap.store.Eviction, {"policy": "fifo"}, "policy 'fifo'", "lru, lfu, ttl"),
    ],
)
def test_an_unknown_word_is_refused_where_it_is_given(
    kind: Any, arguments: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**arguments)
    assert f"{what} is unknown" in caught.value.what
    assert fix in caught.value.fix


def test_features_and_labels_of_other_types_are_refused() -> None:
    wrong: Any
    for wrong, what in (
        ({"user": 16}, "Schema: features['user'] must be a Categorical, a Numeric or a Vector, got 16"),
        (
            {"user": {"dim": 16}},
            "Schema: features['user'] must be a Categorical, a Numeric or a Vector, got a",
        ),
        (["user"], "Schema: features must be a dict, got a value of type list"),
    ):
        with pytest.raises(ConfigError) as caught:
            Schema(["y"], wrong)
        assert caught.value.what.startswith(what)
    with pytest.raises(ConfigError, match="labels must be a list of texts or Label, got 'clicked'"):
        Schema("clicked", {"x": Numeric()})


@pytest.mark.parametrize(
    ("arguments", "unmeasured", "scale"),
    [
        ({}, False, (0.0, 1.0)),
        ({"kind": "regression"}, True, (0.0, 1.0)),
        ({"kind": "regression", "mean": 3.0}, True, (3.0, 1.0)),
        ({"kind": "regression", "mean": 0.0, "std": 2.0}, False, (0.0, 2.0)),
        ({"kind": "regression", "loss": "poisson"}, True, (1.0, 1.0)),
        ({"kind": "regression", "loss": "poisson", "mean": 4.0}, False, (4.0, 1.0)),
    ],
)
def test_a_number_is_measured_when_its_scale_is_known(
    arguments: dict[str, Any], unmeasured: bool, scale: tuple[float, float]
) -> None:
    label = Label(name="y", **arguments)
    assert (label.unmeasured, label.scale) == (unmeasured, scale)


def test_a_schema_in_a_notebook_has_a_row_for_each_label_and_feature() -> None:
    schema = Schema(["<clicked>"], {"user": satrap.Categorical(dim=16, multi=True), "price": Numeric()})
    shown = schema._repr_html_()
    assert "<td>&lt;clicked&gt;</td><td>Label</td>" in shown
    assert "<td>user</td><td>Categorical</td><td>dim=16, multi=True</td>" in shown
    assert "<td>price</td><td>Numeric</td><td></td>" in shown
