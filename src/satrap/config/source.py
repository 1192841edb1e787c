"""Reads a recipe file into plain values, with the line of each key."""

import os
import re
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from satrap.errors import ConfigError

KeyPath = tuple[str | int, ...]
MAX_NODES = 20_000
"""Maximum number of nodes in a recipe, with aliases expanded."""

MAX_DEPTH = 16
TOO_LARGE = "the recipe is nested too deeply or too large"
MAX_BYTES = 1 << 20
MAX_SIGNS = 4 * MAX_NODES
MAX_OPEN = 1000
"""Limits on bytes, separator characters and simultaneously open brackets. Longer texts are not parsed,
because a value takes 0.1 ms and each open bracket slows down all later ones."""

PROBLEMS = {
    "expected <block end>": "this line is not indented like the lines around it, or a punctuation mark is "
    "misplaced",
    "mapping values are not allowed here": "a second ':' on the line, or wrong indentation; quote values "
    "that contain ': '",
    "could not find expected ':'": "a key without ':'",
    "while scanning a simple key": "a key without ':'",
    "expected ',' or ']'": "a list that begins with [ lacks its ] or a comma",
    "expected ',' or '}'": "a mapping that begins with { lacks its } or a comma",
    "found character '\\t'": "a tab; indent with spaces only",
    "found unexpected end of stream": "a quote that is not closed",
    "expected <document start>": "a second document, or text after the end; a recipe is one mapping",
    "but found another document": "a second document; a recipe is one mapping",
    "found undefined alias": "'*' begins an alias, and this alias is not defined; quote the value",
}
"""Beginning of the parser's message -> a clearer message."""

DATA_FILES = ("data.train", "data.validation", "data.test", "data.stream.folder", "data.stream.labels.folder")
"""Keys whose values are paths of files to read."""

OWN_CODE: tuple[tuple[str, str], ...] = (("model", "class"), ("training", "loss"), ("training", "metrics"))
"""Keys whose values name user code, or are lists of such names."""


SEARCH: tuple[str, ...] = ("tune", "search")
"""The mapping whose keys are dotted names of other keys."""


def dotted(path: KeyPath) -> str:
    """Return `data.join.0.on` for ("data", "join", 0, "on")."""
    return ".".join(str(part) for part in path)


@dataclass(slots=True)
class RecipeSource:
    """Values of a recipe file with overrides applied. `file` is its path as the user gave it.

    `places` maps key paths to "recipe.yaml:12" or "--set data.train".
    """

    file: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Return the place of a key, or of the nearest enclosing mapping.

        The place of a mapping made by overrides alone is the first of these overrides.
        """
        inside = next((self.places[key] for key in self.places if key[: len(path)] == path), None)
        if inside is not None:
            return self.places.get(path, inside)
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.file

    def where(self, path: KeyPath) -> str:
        """Return the `where` of an error about a key: place and full key."""
        place = self.place(path)
        return place if place.startswith("--set") else f"{place}, key {dotted(path)}"


def read(path: str | Path, overrides: Sequence[str] = ()) -> RecipeSource:
    """Read a YAML file and apply `key.path=value` overrides; raise ConfigError for any error in them."""
    source = RecipeSource(str(path))
    try:
        text = _text(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read the recipe: {error.strerror}", where=str(path), fix="give the path of a recipe file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the recipe is not UTF-8 text: {error.reason}", where=str(path)) from error
    node = _compose(text, str(path))
    if not isinstance(node, MappingNode):
        raise ConfigError("a recipe must be a mapping of sections such as data: and model:", where=str(path))
    source.values = _Reader(source, str(path)).build(node, ())
    return with_overrides(source, overrides)


def with_overrides(source: RecipeSource, overrides: Sequence[str]) -> RecipeSource:
    """Apply `key.path=value` overrides to a source; raise ConfigError for any error in them."""
    for number, override in enumerate(overrides):
        _override(source, override, overrides[:number])
    return source


def _text(path: str | Path) -> str:
    """Return the content of a regular file. On a pipe, a plain `open` would block until data arrives."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        data = file.read(MAX_BYTES + 1) if regular else b""
    if not regular or len(data) > MAX_BYTES:
        raise ConfigError(
            f"a recipe has at most {MAX_BYTES:,} bytes" if regular else "the recipe is not a regular file",
            where=str(path),
            fix="give the path of a recipe file",
        )
    return data.decode()


def _compose(text: str, name: str) -> Node | None:
    """Parse one YAML document without constructing or executing anything."""
    brackets = (1 if sign in "[{" else -1 for sign in re.findall(r"[\[{}\]]", text))
    signs = sum(text.count(sign) for sign in ",[{:\n-?")
    if signs > MAX_SIGNS or max(accumulate(brackets), default=0) > MAX_OPEN:
        raise ConfigError(TOO_LARGE, where=name)
    try:
        with warnings.catch_warnings(action="error", category=ReusedAnchorWarning):
            node: Node | None = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ReusedAnchorWarning) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = name if mark is None or name.startswith("--set") else f"{name}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or "the text cannot be parsed"
        explanation = next((words for start, words in PROBLEMS.items() if problem.startswith(start)), problem)
        raise ConfigError(f"not valid YAML: {explanation}", where=where) from error
    except RecursionError as error:
        raise ConfigError(TOO_LARGE, where=name) from error
    except (AssertionError, LookupError) as error:  # raised by the parser's check of the %YAML version
        raise ConfigError("unknown YAML version", where=name, fix="remove the %YAML line") from error
    return node


@dataclass(slots=True)
class _Reader:
    """Converts nodes to plain values and records the line of each."""

    source: RecipeSource
    name: str
    by_line: bool = True
    count: int = 0
    scalars: Any = field(default_factory=lambda: YAML(typ="safe", pure=True).constructor)

    def build(self, node: Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MAX_NODES or len(path) > MAX_DEPTH:
            raise ConfigError(TOO_LARGE, where=self.at(node))
        if path not in self.source.places and path:
            self.source.places[path] = self.at(node)
        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        return self.scalar(node)

    def at(self, node: Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}" if self.by_line else self.name

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value
            if not isinstance(key, ScalarNode) or name == "<<":
                raise ConfigError(
                    "keys must be plain strings; merge keys are not supported", where=self.at(key)
                )
            inner = (*path, name)
            if name in values:
                raise ConfigError(
                    f"key {name!r} is given twice",
                    where=f"{self.at(key)}, key {dotted(inner)}",
                    why=f"the first one, at {self.source.places[inner]}, would be lost",
                    fix="keep one",
                )
            self.source.places[inner] = self.at(key)
            values[name] = self.build(value, inner)
        return values

    def scalar(self, node: Node) -> Any:
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value
        try:
            return self.scalars.construct_object(node)
        except (YAMLError, ValueError, LookupError, TypeError, ArithmeticError) as error:  # from unusual tags
            raise ConfigError(
                f"cannot read the value {str(node.value)[:80]!r}", where=self.at(node)
            ) from error


def _override(source: RecipeSource, override: str, earlier: Sequence[str]) -> None:
    key, equals, text = override.partition("=")
    where = f"--set {key}"
    path: tuple[str, ...] = tuple(key.split("."))
    if path[: len(SEARCH)] == SEARCH != path:
        path = (*SEARCH, key.removeprefix(f"{dotted(SEARCH)}."))
    if not equals or not all(path):
        raise ConfigError(
            f"cannot read the override {override!r}", where="--set", fix="write --set section.key=value"
        )
    if key in (text.partition("=")[0] for text in earlier):
        raise ConfigError(f"key {key!r} is given twice", where=where, fix="keep one")
    target = source.values
    for end, part in enumerate(path[:-1], 1):
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise ConfigError(
                f"{dotted(path[:end])} is not a mapping, so it has no key {path[end]!r}",
                where=where,
                fix=f"set the whole of {dotted(path[:end])}",
            )
    for old in [p for p in source.places if p[: len(path)] == path]:
        del source.places[old]
    node = _compose(text, where)
    source.places[path] = where
    value = None if node is None else _Reader(source, where, by_line=False).build(node, path)
    if path in OWN_CODE:
        value = _from_here_code(value)
    target[path[-1]] = _from_here(value) if key in DATA_FILES else value


def _from_here(value: Any) -> Any:
    """Make paths of the command line absolute: they are relative to the current folder, not to the recipe."""
    if isinstance(value, list):
        return [_from_here(item) for item in value]
    return str(Path(value).absolute()) if isinstance(value, str) and "://" not in value else value


def _from_here_code(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_here_code(item) for item in value]
    return _from_here(value) if ".py:" in str(value) else value
