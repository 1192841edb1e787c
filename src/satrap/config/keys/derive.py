"""Derives recipe keys from the dataclasses they fill, so that name, type, default and text exist once."""

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import core_schema

STRICT = ConfigDict(
    extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
)


class Keys(BaseModel):
    """Base of all recipe sections: unknown keys and wrong types are errors; values cannot change."""

    model_config = STRICT


class _Derived(Keys):
    """Base of keys derived from a dataclass; keeps pydantic from searching all modules for docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def as_list(value: object) -> object:
    """Wrap a scalar into a list of one item."""
    return value if isinstance(value, list) or value is None else [value]


def as_text(value: object) -> object:
    """Convert a number to a string; leave a boolean as it is, so that it is rejected."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(as_text)]
Texts = Annotated[list[Text], BeforeValidator(as_list)]
Sources = Annotated[list[str], BeforeValidator(as_list)]


@dataclass(frozen=True)
class Choice:
    """Annotation of a field whose mapping is validated by one of several models.

    `select` returns the tag of the model for a mapping, or any other value if no model fits. Error locations
    write a tag as `<tag>` to distinguish it from keys. `key` is the mapping's key that decides.
    """

    select: Callable[[Mapping[str, Any]], object]
    models: Mapping[str, type[Keys]]
    key: str

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.tagged_union_schema(
            choices={f"<{tag}>": handler.generate_schema(model) for tag, model in self.models.items()},
            discriminator=lambda v: f"<{self.select(v)}>" if isinstance(v, dict) else None,
            custom_error_type="choice",
            custom_error_message="Input should be one of the known kinds",
            serialization=core_schema.simple_ser_schema("any"),
        )


def argument_docs(documented: type) -> dict[str, str]:
    """Return argument -> text from the `Args:` part of a class docstring, white space normalised."""
    text = inspect.cleandoc(documented.__doc__ or "")
    _, _, part = text.partition("Args:\n")
    part = re.split(r"\n(?=\S)", part)[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", part, re.MULTILINE)
    return {name: " ".join(body.split()) for name, body in entries}


def _plain(annotation: Any) -> Any:
    """Replace tuples with lists, as in YAML; lists of strings also accept numbers and a single value."""
    if annotation == tuple[str, ...]:
        return Texts
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        if inner[-1] is Ellipsis:
            return list[inner[0]]  # type: ignore[valid-type]
        return Annotated[list[inner[0]], Field(min_length=len(inner), max_length=len(inner))]  # type: ignore[valid-type]
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(_plain(a) for a in get_args(annotation))]  # noqa: UP007
    return annotation


def keys_of(source: type, title: str, replaced: Mapping[str, tuple[Any, Any] | None]) -> type[Keys]:
    """Return the recipe keys that fill a dataclass: same names, defaults and documentation.

    The dataclass and its bases document their fields under `Args:`. `replaced` maps a field to an
    (annotation, default) that is added or overrides the dataclass's field, or to None, which removes the
    field.
    """
    docs: dict[str, str] = {}
    for base in reversed(source.__mro__):
        docs |= argument_docs(base)
    hints = get_type_hints(source)
    members: dict[str, Any] = {name: member for name, member in replaced.items() if member is not None}
    for field in fields(source):
        if field.name not in replaced:
            default = ... if field.default is MISSING else field.default
            default = list(default) if isinstance(default, tuple) else default
            described = Field(default, description=docs[field.name])
            members[field.name] = (_plain(hints[field.name]), described)
    return create_model(title, __base__=_Derived, **members)


def literal(value: str | bool, description: str) -> tuple[Any, Any]:
    """Return (annotation, default) of a required key with one valid value."""
    return Literal[value], Field(..., description=description)
