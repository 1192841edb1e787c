"""A complete, checked configuration of a run."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from satrap.config.checks.combinations import check_combinations
from satrap.config.checks.mesh import check_shard_size, with_workers
from satrap.config.checks.processes import check_processes
from satrap.config.checks.stream import check_stream, in_order
from satrap.config.checks.tables import check_kept, check_table
from satrap.config.explain import explain, placed, unknown_value
from satrap.config.keys.data import SplitKeys
from satrap.config.keys.derive import Keys, plain
from satrap.config.keys.sections import Sections
from satrap.config.source import OWN_CODE, KeyPath, RecipeSource, dotted, read, with_overrides
from satrap.errors import ConfigError, did_you_mean
from satrap.runtime import user_code
from satrap.schema import Schema
from satrap.sequences import sequence_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe file, checked; made by `load`.

    ```python
    recipe = satrap.config.load("goodbooks.yaml", ["training.mode=sync"])
    recipe.sections.data.batch_size, recipe.schema(), recipe.origin(("training", "mode"))
    ```

    `sections` are the values with defaults filled in; `source` has the written values and their places.
    """

    sections: Sections
    source: RecipeSource

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return Path(self.source.file).stem

    def schema(self) -> Schema:
        """Return labels and features as a `Schema`; raise ConfigError if they are invalid."""
        top = self.sections
        twice = len({label.name for label in top.labels}) < len(top.labels)
        return self.located(
            ("labels",) if twice else ("features",),
            Schema,
            top.labels,
            top.features,
            weight=top.weight,
            group=top.group,
            salt=top.salt,
        )

    def located(self, path: KeyPath, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a function; add the place of a recipe key to a `ConfigError` without one.

        The place is `path`, or the feature or key below `path` that the message names.
        """
        try:
            return call(*arguments, **named)
        except ConfigError as error:
            if error.where:
                raise
            match = re.match(r"(feature|label)s? '([^']+)'", error.what)
            if match and match[1] == "feature":
                path = ("features", match[2])
            elif match:
                path = ("labels", [label.name for label in self.sections.labels].index(match[2]))
            raise placed(error, path, self.source) from error

    def origin(self, path: KeyPath) -> str:
        """Return where a value comes from: "recipe.yaml:12", "--set" or "default"."""
        place = self.source.places.get(path, "default")
        return "--set" if place.startswith("--set") else place

    def locate(self, path: str) -> str:
        """Return a data path of the recipe relative to the current folder; URLs stay as they are."""
        if "://" in path or Path(path).is_absolute():
            return path
        return str(Path(self.source.file).parent / path)

    def own_code(self) -> dict[KeyPath, str]:
        """Return key -> reference of the recipe's user code; files are relative to the current folder.

        Each item of a list has its own key, such as ("training", "metrics", 0).
        """
        references: dict[KeyPath, str] = {}
        for section, key in OWN_CODE:
            value = getattr(getattr(self.sections, section), key)
            if isinstance(value, list):
                references |= {(section, key, i): reference for i, reference in enumerate(value)}
            elif isinstance(value, str):
                references[section, key] = value
        return {path: self.located(path, self._own, reference) for path, reference in references.items()}

    def _own(self, reference: str) -> str:
        module, name = user_code.parts(reference)
        return f"{self.locate(module)}:{name}" if user_code.is_file(module) else reference

    def with_own_code(self, references: Mapping[KeyPath, str]) -> "Recipe":
        """Return a recipe with new values for all keys of `own_code`."""
        changed: dict[str, dict[str, Any]] = {}
        for (section, key, *index), reference in references.items():
            values = changed.setdefault(str(section), {})
            values[str(key)] = [*values.get(str(key), []), reference] if index else reference
        update = {
            section: getattr(self.sections, section).model_copy(update=values)
            for section, values in changed.items()
        }
        return replace(self, sections=self.sections.model_copy(update=update))

    def resolved(self) -> dict[str, Any]:
        """Return the complete recipe as plain data, with defaults and with absolute data paths.

        `load` reads it back, from any folder, to an equal recipe.
        """
        whole = _dump(self.sections)
        data = whole["data"]
        for part in ("train", "validation", "test", "items"):
            if part in data:
                data[part] = [self._absolute(path) for path in data[part]]
        tables = whole.get("tables", {}).values()
        for keys, name in (
            (data.get("stream", {}), "folder"),
            (data.get("stream", {}).get("labels", {}), "folder"),
            *((join, "source") for join in data.get("join", ())),
            *((table, "rows") for table in tables),
            (whole["training"].get("warm_start") or {}, "url"),
        ):
            if keys.get(name):
                keys[name] = self._absolute(keys[name])
        for section, key in (("checkpoint", "url"), ("publish", "url"), ("serving", "log")):
            if url := whole.get(section, {}).get(key):
                whole[section][key] = _absolute_url(url)
        for path, reference in self.own_code().items():
            if user_code.is_file(user_code.parts(reference)[0]):
                put(whole, path, self._absolute(reference))
        if "md5" in whole.get("about", {}):
            whole["about"]["md5"] = {self._absolute(k): v for k, v in whole["about"]["md5"].items()}
        return whole

    def changed(self, values: Mapping[KeyPath, Any]) -> "Recipe":
        """Return a recipe with new values at some paths; data paths are absolute.

        Raises:
            ConfigError: a path or a value is wrong; the message is the same as for `load`.
        """
        whole = self.resolved()
        for path, value in values.items():
            target: dict[Any, Any] = whole
            for end, part in enumerate(path[:-1], 1):
                target = target.setdefault(part, {})
                if not isinstance(target, dict):
                    raise ConfigError(
                        f"{dotted(path[:end])} is not a mapping, so it has no key {path[end]!r}"
                    )
            target[path[-1]] = value
        return checked(RecipeSource(self.source.file, whole, self.source.places))

    def _absolute(self, path: str) -> str:
        located = self.locate(path)
        return located if "://" in located else str(Path(located).absolute())


def put(values: Any, path: KeyPath, value: str) -> None:
    """Set a value inside nested mappings and lists, such as the result of `Recipe.resolved`."""
    for part in path[:-1]:
        values = values[part]
    values[path[-1]] = value


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe, a YAML file; paths in it are relative to its folder.

    Overrides are strings `section.key=value`, applied after the file; values are YAML. A wrong file, key or
    value raises ConfigError with file, line and key.
    """
    return checked(read(path, overrides))


def without_data(place: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the defaults, with overrides, for a saved model without a recipe.

    Its labels and features are placeholders, because a saved model has its own schema.
    """
    features, model = {"none": {"dim": 1}}, {"name": "none"}
    values = {"data": {"train": []}, "labels": ["none"], "features": features, "model": model}
    return checked(with_overrides(RecipeSource(place, values), overrides))


def checked(source: RecipeSource) -> Recipe:
    """Return the recipe of a source; a wrong key or value raises ConfigError."""
    try:
        sections = Sections.model_validate(source.values)
    except ValidationError as error:
        raise explain(error, source) from error
    sections = in_order(with_workers(sections, source))
    recipe = Recipe(sections, source)
    check_combinations(sections, source)
    check_processes(sections, source)
    check_shard_size(sections, source)
    _check_own_code(recipe)
    _check_data(recipe)
    check_stream(sections, source)
    _check_tables(recipe, recipe.schema())
    if (ranking := sections.training.ranking) is not None:
        recipe.located(("training", "ranking"), ranking.check, recipe.schema())
    check_kept(sections, source)
    return recipe


BRIEF = ("labels", "features", "tables")
"""Sections that hold only the written keys in a resolved recipe; the schema has their defaults."""


def _dump(keys: Keys) -> dict[str, Any]:
    """Return the values that are written or have a default, as plain data."""
    values: dict[str, Any] = {}
    for name, info in type(keys).model_fields.items():
        value = getattr(keys, name)
        if isinstance(value, Keys):
            value = _dump(value)
        elif isinstance(value, list) and value and isinstance(value[0], Keys):
            value = [_dump(item) for item in value]
        else:
            value = plain(value, brief=name in BRIEF)
        default = info.get_default(call_default_factory=True)
        if value not in ({}, []) and not (value is None and default is None):
            values[name] = value
    return values | (keys.model_extra or {})


def _check_own_code(recipe: Recipe) -> None:
    model = recipe.sections.model
    if (model.name is None) == (model.own is None):
        raise ConfigError(
            "model has both name and class" if model.name else "key 'name' is missing in model",
            where=recipe.source.where(("model",)),
            fix="keep one of them; --set 'model={name: deepfm}' replaces all of model"
            if model.name
            else "add name: deepfm, or class: my_model.py:MyNet",
        )
    references = recipe.own_code()
    metrics = [
        user_code.parts(references[path])[1] for path in references if path[:2] == ("training", "metrics")
    ]
    training = recipe.sections.training
    ranked = training.ranking.names if training.ranking else ()
    monitor, allowed = training.monitor, ["auc", "logloss", *metrics, *ranked]
    if monitor not in allowed:
        raise unknown_value(("training", "monitor"), monitor, allowed, recipe.source)


def _check_tables(recipe: Recipe, schema: Schema) -> None:
    names = list(dict.fromkeys(schema.table_of(feature) for feature in schema.categorical))
    for name in recipe.sections.tables:
        if name not in names:
            raise ConfigError(
                f"tables names the unknown table {name!r}",
                where=recipe.source.where(("tables", name)),
                fix=f"{did_you_mean(name, names)}tables: {', '.join(names) or 'none'}",
            )
        check_table(name, recipe.sections, recipe.source)


def _check_data(recipe: Recipe) -> None:
    data, shares = recipe.sections.data, recipe.sections.shares
    if data.global_batch and data.batch_size % shares:
        raise ConfigError(
            f"data.batch_size is {data.batch_size}, which is not divisible by {shares} workers",
            where=recipe.source.where(("data", "batch_size")),
            why="with data.global_batch, batch_size is divided equally among the workers",
            fix=f"make batch_size a multiple of {shares}, or set data.global_batch to false",
        )
    if data.balance is not None:
        recipe.located(("data", "balance"), sequence_of, recipe.schema().sequences, data.balance)
    if data.split is None:
        return
    if isinstance(data.split, SplitKeys):
        _check_parts(recipe, data.split)
    elif data.split.validation is None and data.split.test is None:
        raise ConfigError(
            "data.split has no time",
            where=recipe.source.where(("data", "split")),
            fix='give the first time of the test or validation rows, for example test: "2024-01-31"',
        )


def _check_parts(recipe: Recipe, split: SplitKeys) -> None:
    for part in ("validation", "test"):
        rows = getattr(split, part)
        if any(row >= split.modulo for row in rows):
            raise ConfigError(
                f"data.split.{part} names part {max(rows)}, but the parts are 0 to {split.modulo - 1}",
                where=recipe.source.where(("data", "split", part)),
            )
    named = [*split.validation, *split.test]
    if len(set(named)) != len(named):
        raise ConfigError(
            "data.split names a part twice",
            where=recipe.source.where(("data", "split")),
            why="a part holds either validation or test rows",
        )
    if len(named) >= split.modulo:
        raise ConfigError(
            "data.split leaves no rows for training", where=recipe.source.where(("data", "split"))
        )


def _absolute_url(url: str) -> str:
    """Return a URL as it is, and a folder as an absolute path."""
    return url if "://" in url else str(Path(url).absolute())
