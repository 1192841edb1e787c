from satrap import Categorical, Label, Numeric, Schema, Vector
from satrap.prepare.layout import layout


def columns(schema, also=()):
    return {output.name: (output.column, output.kind) for output in layout(schema, also).outputs}


def test_each_column_once_in_the_form_that_its_features_need():
    schema = Schema(
        [Label(name="bought", positive=("yes",)), "clicked"],
        {
            "user": Categorical(dim=4, buckets=10),
            "again": Categorical(dim=8, column="user"),
            "both": Categorical(dim=4, cross=("user", "city")),
            "tags": Categorical(dim=4, multi=True, separator="|", max_values=3, keep="last"),
            "price": Numeric(transform="log1p"),
            "bins": Categorical(dim=4, column="price", boundaries=(1.0, 2.0)),
            "hour": Categorical(dim=4, column="at", time="hour"),
            "text": Vector(dim=3, separator=" "),
        },
        weight="w",
        group="user",
    )
    assert columns(schema) == {
        "user": ("user", "id"),
        "city": ("city", "id"),
        "tags": ("tags", "ids"),
        "price": ("price", "number"),
        "at": ("at", "raw"),
        "text": ("text", "raw"),
        "clicked": ("clicked", "number"),
        "w": ("w", "number"),
        "bought": ("bought", "raw"),
    }
    assert layout(schema).changes == {}


def test_a_column_in_two_forms_has_two_names():
    schema = Schema(
        ["clicked"],
        {
            "year": Categorical(dim=4),
            "age": Numeric(column="year"),
            "x": Categorical(dim=4, cross=("year", "year.2")),
            "tags": Categorical(dim=4, multi=True, separator="|"),
            "whole": Categorical(dim=4, column="tags"),
        },
    )
    assert columns(schema) == {
        "year": ("year", "number"),
        "year.3": ("year", "id"),
        "year.2": ("year.2", "id"),
        "tags": ("tags", "id"),
        "tags.2": ("tags", "ids"),
        "clicked": ("clicked", "number"),
    }
    assert layout(schema).changes == {
        "year": {"column": "year.3"},
        "x": {"cross": ["year.3", "year.2"]},
        "tags": {"column": "tags.2"},
    }


def test_weights_go_with_their_values():
    schema = Schema(
        ["y"],
        {
            "a": Categorical(dim=4, multi=True, separator="|", weights="w"),
            "b": Categorical(dim=4, multi=True, weights="w", max_values=2),
            "c": Categorical(dim=4, multi=True, separator="|", weight_separator=":"),
        },
    )
    assert columns(schema) == {
        "a": ("a", "ids"),
        "w": ("w", "weights"),
        "b": ("b", "ids"),
        "w.2": ("w", "weights"),
        "c": ("c", "ids"),
        "y": ("y", "number"),
    }
    assert layout(schema).changes == {"b": {"weights": "w.2"}}


def test_what_the_split_looks_at_stays_as_it_is():
    schema = Schema(["y"], {"at": Categorical(dim=4)})
    assert columns(schema, ["at"]) == {"at": ("at", "raw"), "at.2": ("at", "id"), "y": ("y", "number")}


def test_a_value_that_is_also_a_number_is_kept_as_text_for_its_class():
    schema = Schema([Label(name="y", kind="multiclass", classes=("1", "2"))], {"y": Numeric()}, group="g")
    assert columns(schema) == {"y": ("y", "raw"), "g": ("g", "raw")}
