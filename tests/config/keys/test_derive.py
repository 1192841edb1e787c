from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from satrap import schema
from satrap.config.keys.derive import argument_docs, keys_of, literal


@dataclass(kw_only=True)
class Shape:
    """A shape.

    Args:
        size: how large it is,
            in metres.
        tags: words.
        point: where.

    Raises:
        Nothing: ever.
    """

    size: float
    tags: tuple[str, ...] | None = None
    point: tuple[float, float] = (0.0, 0.0)


def test_documentation_of_arguments_comes_from_the_class() -> None:
    assert argument_docs(Shape) == {
        "size": "how large it is, in metres.",
        "tags": "words.",
        "point": "where.",
    }


def test_keys_have_the_fields_types_defaults_and_texts_of_the_dataclass() -> None:
    keys = keys_of(Shape, "ShapeKeys", {"kind": literal("round", "Its kind.")})
    assert list(keys.model_fields) == ["kind", "size", "tags", "point"]
    assert keys.model_fields["size"].description == "how large it is, in metres."
    filled = keys.model_validate({"kind": "round", "size": 2, "tags": [4, 4.5, "x"], "point": [1, 2.0]})
    assert filled.model_dump() == {"kind": "round", "size": 2, "tags": ["4", "4.5", "x"], "point": [1, 2.0]}
    assert keys.model_validate({"kind": "round", "size": 1, "tags": "one"}).model_dump()["tags"] == ["one"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "square", "size": 1},
        {"kind": "round"},
        {"kind": "round", "size": "1"},
        {"kind": "round", "size": 1, "point": [1]},
        {"kind": "round", "size": 1, "tags": [True]},
        {"kind": "round", "size": 1, "colour": "red"},
    ],
)
def test_keys_are_strict(wrong: dict[str, object]) -> None:
    keys = keys_of(Shape, "ShapeKeys", {"kind": literal("round", "Its kind.")})
    with pytest.raises(ValidationError):
        keys.model_validate(wrong)


@pytest.mark.parametrize("contract", [schema.Categorical, schema.Numeric, schema.Label])
def test_every_argument_of_the_schema_is_documented(contract: type) -> None:
    assert set(argument_docs(contract)) == set(contract.__dataclass_fields__)
