"""Derives recipe keys from the dataclasses they fill, so that name, type, default and text exist once."""

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import core_schema

from satrap.config.keys.values import Bytes, Seconds
from satrap.errors import ConfigError
from satrap.runtime.arguments import BYTES, SECONDS

T = TypeVar("T")
STRICT = ConfigDict(
    extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
)


class Keys(BaseModel):
    """Base of all recipe sections: unknown keys and wrong types are errors; values cannot change."""

    model_config = STRICT


class Derived(Keys):
    """Base of keys derived from a dataclass; keeps pydantic from searching all modules for docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=False)
    filled: ClassVar[type[Any]]
    names: ClassVar[Mapping[str, str]]  # key -> field that it fills

    def build(self) -> Any:
        """Return the dataclass of these values; raise `ConfigError` as it does."""
        values = {field: getattr(self, key) for key, field in self.names.items()}
        hints = get_type_hints(self.filled)
        for name, value in values.items():
            if isinstance(value, list) and "tuple[" in str(hints[name]):
                values[name] = tuple(value)
        return self.filled(**values)


class RefusedError(ValueError):
    """A `ConfigError` of a dataclass, inside pydantic's validation."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(error.what)
        self.error = error


def as_list(value: object) -> object:
    """Wrap a scalar into a list of one item."""
    return value if isinstance(value, list) or value is None else [value]


def as_text(value: object) -> object:
    """Convert a number to a string; leave a boolean as it is, so that it is rejected."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(as_text)]
Texts = Annotated[list[Text], BeforeValidator(as_list)]
Sources = Annotated[list[str], BeforeValidator(as_list)]


@dataclass(frozen=True, eq=False)
class Choice:
    """Annotation of a field whose mapping is validated by one of several models.

    `select` returns the tag of the model for a mapping, or any other value if no model fits. Error locations
    write a tag as `<tag>` to distinguish it from keys. `key` is the mapping's key that decides. With `text`,
    a text is also a value.
    """

    select: Callable[[Mapping[str, Any]], object]
    models: Mapping[str, type[Keys]]
    key: str
    text: bool = False

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        choices = {f"<{tag}>": handler.generate_schema(model) for tag, model in self.models.items()}
        if self.text:
            choices["<text>"] = core_schema.str_schema()
        keys = core_schema.tagged_union_schema(
            choices=choices,
            discriminator=self._tag,
            custom_error_type="choice",
            custom_error_message="Input should be one of the known kinds",
        )
        anything = core_schema.simple_ser_schema("any")
        return core_schema.no_info_after_validator_function(_built, keys, serialization=anything)

    def _tag(self, value: object) -> str | None:
        if isinstance(value, dict):
            return f"<{self.select(value)}>"
        return "<text>" if self.text and isinstance(value, str) else None


def _built(keys: Keys | str) -> Any:
    try:
        return keys.build() if isinstance(keys, Derived) else keys
    except ConfigError as error:
        raise RefusedError(error) from error


CHOICES: dict[type[Any], Choice] = {}
"""Dataclass, or base of several, -> how a mapping is read into it."""


def settings(kind: type[Any], title: str = "") -> Choice:
    """Return the annotation of a key whose mapping becomes a dataclass; see `keys_of`."""
    keys = keys_of(kind, title or f"{kind.__name__}Keys", {})
    return CHOICES.setdefault(kind, Choice(lambda _: kind.__name__, {kind.__name__: keys}, ""))


def named(base: type[Any], kinds: Sequence[Any], what: str) -> Choice:
    """Return the annotation of a key whose mapping becomes one of several dataclasses, by its `name`."""
    models = {
        kind.name: keys_of(kind, f"{kind.__name__}Keys", {"name": literal(kind.name, what)}) for kind in kinds
    }
    return CHOICES.setdefault(base, Choice(lambda value: value.get("name"), models, "name"))


def plain(value: Any, *, brief: bool = False) -> Any:
    """Return a value of a recipe as YAML has it; with `brief`, a dataclass without its defaults."""
    if isinstance(value, list | tuple):
        return [plain(item, brief=brief) for item in value]
    if isinstance(value, dict):
        return {key: plain(item, brief=brief) for key, item in value.items()}
    keys = _KEYS.get(type(value))
    if keys is None:
        return value
    values = {}
    for key, info in keys.model_fields.items():
        default = info.get_default()
        item = getattr(value, keys.names[key]) if key in keys.names else get_args(info.annotation)[0]
        same = item == default or (isinstance(item, tuple) and list(item) == default)
        if not (same and (brief or item is None)):
            values[key] = plain(item)
    return values


_KEYS: dict[type[Any], type[Derived]] = {}


def argument_docs(documented: type) -> dict[str, str]:
    """Return argument -> text from the `Args:` part of a class docstring, white space normalised."""
    text = inspect.cleandoc(documented.__doc__ or "")
    _, _, part = text.partition("Args:\n")
    part = re.split(r"\n(?=\S)", part)[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", part, re.MULTILINE)
    return {name: " ".join(body.split()) for name, body in entries}


def _plain(annotation: Any) -> Any:
    """Return the annotation of a key: as in YAML, without tuples, paths and the word "store"."""
    if annotation == tuple[str, ...]:
        return Texts
    if annotation in CHOICES:
        return Annotated[annotation, CHOICES[annotation]]
    if get_origin(annotation) is Annotated:
        return _UNITS[annotation.__metadata__[0]]
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        if inner[-1] is Ellipsis:
            return list[inner[0]]  # type: ignore[valid-type]
        return Annotated[list[inner[0]], Field(min_length=len(inner), max_length=len(inner))]  # type: ignore[valid-type]
    if get_origin(annotation) in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a not in (Path, Literal["store"])]
        return Union[tuple(_plain(a) for a in members)]  # noqa: UP007
    return annotation


_UNITS = {BYTES: Bytes, SECONDS: Seconds}


def keys_of(
    source: type[Any],
    title: str,
    replaced: Mapping[str, tuple[Any, Any]],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> type[Derived]:
    """Return the recipe keys that fill a dataclass: same names, defaults and documentation.

    The dataclass and its bases document their fields under `Args:`. `replaced` maps a key to an (annotation,
    default) that is added or overrides the dataclass's field. `renamed` maps a field to a key with another
    name. Fields with metadata are left out.
    """
    docs = {name: text for base in reversed(source.__mro__) for name, text in argument_docs(base).items()}
    hints = get_type_hints(source, include_extras=True)
    names = {renamed.get(field.name, field.name): field for field in fields(source) if not field.metadata}
    members: dict[str, Any] = {key: member for key, member in replaced.items() if key not in names}
    for key, field in names.items():
        member = _plain(hints[field.name]), Field(_default(field), description=docs[field.name])
        members[key] = replaced.get(key, member)
    keys = create_model(title, __base__=Derived, **members)
    keys.filled, keys.names = source, {key: field.name for key, field in names.items()}
    _KEYS[source] = keys
    return keys


def _default(field: Any) -> Any:
    """Return the default of a dataclass's field as a key has it."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return ... if default is MISSING else list(default) if isinstance(default, tuple) else default


def of(source: type[Any], name: str, *default: Any) -> Any:
    """Return a key with the default and the text of a dataclass's field; `default` replaces the first."""
    field = next(field for field in fields(source) if field.name == name)
    chosen = default[0] if default else _default(field)
    return Field(chosen, description=argument_docs(source)[name])


def fill(source: type[T], *sections: Keys, **more: Any) -> T:
    """Return a dataclass with the values of keys of the same names; null stands for the field's default."""
    names = {field.name for field in fields(source)}  # type: ignore[arg-type]
    values = {key: value for keys in sections for key, value in keys if key in names and value is not None}
    return source(**{k: tuple(v) if isinstance(v, list) else v for k, v in (values | more).items()})


def literal(value: str | bool, description: str) -> tuple[Any, Any]:
    """Return (annotation, default) of a required key with one valid value."""
    return Literal[value], Field(..., description=description)
