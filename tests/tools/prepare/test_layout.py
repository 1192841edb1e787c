from satrap import Categorical, Label, Numeric, Schema, Vector
from satrap.tools.prepare.layout import layout


def columns(schema, also=()):
    return {output.column: output.kind for output in layout(schema, also).outputs}


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
        "user": "id",
        "city": "id",
        "tags": "ids",
        "price": "number",
        "at": "raw",
        "text": "raw",
        "clicked": "number",
        "w": "number",
        "bought": "raw",
    }


def test_a_column_in_two_forms_stays_as_it_is():
    schema = Schema(
        ["clicked"],
        {
            "year": Categorical(dim=4),
            "age": Numeric(column="year"),
            "x": Categorical(dim=4, cross=("year", "city")),
            "words": Categorical(dim=4, multi=True, separator=" ", column="tags"),
            "tags": Categorical(dim=4, multi=True, separator="|"),
            "clicked_id": Categorical(dim=4, column="clicked"),
        },
        weight="city",
    )
    assert columns(schema) == {"year": "raw", "city": "raw", "tags": "raw", "clicked": "raw"}


def test_weights_go_with_their_values():
    features = {
        "a": Categorical(dim=4, multi=True, separator="|", weights="w"),
        "few": Categorical(dim=4, multi=True, separator="|", weights="w", column="a", max_values=2),
        "c": Categorical(dim=4, multi=True, separator="|", weight_separator=":"),
    }
    assert columns(Schema(["y"], features)) == {"a": "ids", "w": "weights", "c": "ids", "y": "number"}
    again = {"w_id": Categorical(dim=4, column="w")}
    assert columns(Schema(["y"], features | again)) == {"a": "raw", "w": "raw", "c": "ids", "y": "number"}
    other = {"b": Categorical(dim=4, multi=True, separator="|", weights="w")}  # shares them, so both stay
    found = {"a": "raw", "w": "raw", "c": "ids", "b": "raw", "y": "number"}
    assert columns(Schema(["y"], features | other)) == found
    alone = {"a_words": Categorical(dim=4, multi=True, separator=" ", column="a")}
    assert columns(Schema(["y"], features | alone)) == {"a": "raw", "w": "raw", "c": "ids", "y": "number"}


def test_what_the_split_looks_at_stays_as_it_is():
    schema = Schema(["y"], {"at": Categorical(dim=4)})
    assert columns(schema, ["at"]) == {"at": "raw", "y": "number"}


def test_a_value_that_is_also_a_number_is_kept_as_text_for_its_class():
    schema = Schema([Label(name="y", kind="multiclass", classes=("1", "2"))], {"y": Numeric()}, group="g")
    assert columns(schema) == {"y": "raw", "g": "raw"}
