"""The search space: keys of a recipe, and the values to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from satrap import models
from satrap.config import Recipe, to_yaml
from satrap.config.source import SEARCH, KeyPath
from satrap.errors import ConfigError, did_you_mean
from satrap.launch.network import make_model
from satrap.schema import Categorical

ALL_IDS = "features.*."
"""Prefix of a key that applies to all categorical features."""

FIXED = (
    *("labels", "weight", "group", "about", "checkpoint", "tune", "training.monitor", "training.metrics"),
    *(f"data.{key}" for key in ("train", "validation", "test", "format", "split", "join")),
)
"""Keys that change the measurement or have no effect, so trials that differ in them cannot be compared."""


@dataclass(frozen=True, slots=True)
class Option:
    """A value to try: its text in tables, and its changes to the recipe (none for the original value)."""

    text: str
    changes: Mapping[KeyPath, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dimension:
    """A key and its options; option `own` keeps the recipe's value; `ordered`: neighbours are similar."""

    key: str
    options: tuple[Option, ...]
    own: int
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Usual:
    """A key that is varied by default.

    The recipe's value is multiplied by each of `factors`. `values` are used if the value is 0, or without
    factors.
    """

    key: str
    why: str
    factors: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


_DECAYS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)

USUAL = (
    Usual(
        "embedding.optimizer.lr",
        "too low: rare ids learn nothing; too high: they overfit",
        (0.1, 0.2, 0.5, 1, 2, 5),
    ),
    Usual(
        "embedding.optimizer.initial_accumulator",
        "controls the first steps of an id: a prior for rare ids (decision 0012)",
        (0.01, 0.1, 1, 10, 100),
    ),
    Usual("embedding.optimizer.weight_decay", "pulls rows of rare ids to 0", (0, 0.1, 1, 10), values=_DECAYS),
    Usual("embedding.optimizer.l2", "the same, for FTRL", (0, 0.1, 1, 10), values=_DECAYS),
    Usual("embedding.initial_scale", "noise of new rows before they are trained", (0.1, 1, 10)),
    Usual("features.*.dim", "capacity of a row, and its risk of overfitting", (0.25, 0.5, 1, 2, 4)),
    Usual("dense.optimizer.lr", "rows and network learn at different speeds", (0.1, 0.3, 1, 3)),
    Usual("dense.optimizer.weight_decay", "regularizes the network", (0, 0.1, 1, 10), values=_DECAYS),
    Usual("model.hidden", "capacity of the network", (0.5, 1, 2, 4)),
    Usual("model.dropout", "against overfitting of the network", values=(0, 0.1, 0.2, 0.3, 0.5)),
    Usual("data.batch_size", "more steps per epoch, or steadier ones", (0.25, 0.5, 1, 2)),
)
"""The keys that most often matter, in table order."""


def space_of(recipe: Recipe) -> tuple[Dimension, ...]:
    """Return the search space of a recipe: the usual keys, and the keys of `tune.search`.

    Raises:
        ConfigError: `tune.search` has a key that does not exist or cannot be compared, or a value that the
            recipe rejects; or the space is empty.
    """
    searched = recipe.sections.tune.search
    candidates = []
    if recipe.sections.tune.usual:
        usual_keys = [
            u for u in USUAL if not any(u.key == key or u.key.startswith(f"{key}.") for key in searched)
        ]
        candidates += [_usual(recipe, usual) for usual in usual_keys]
    candidates += [_asked(recipe, key, values) for key, values in searched.items()]
    dimensions = tuple(
        dimension for dimension in candidates if dimension is not None and len(dimension.options) > 1
    )
    if not dimensions:
        raise ConfigError(
            "the search space is empty",
            where=recipe.source.where(("tune",)),
            fix="add keys to tune.search, for example --set 'tune.search.dense.optimizer.lr=[0.001, 0.003]'",
        )
    return dimensions


def chosen(recipe: Recipe, space: Sequence[Dimension], choice: Mapping[str, int]) -> Recipe:
    """Return the recipe with the options of a choice, key -> number; other keys are unchanged."""
    return recipe.changed(changes_of(space, choice))


def changes_of(space: Sequence[Dimension], choice: Mapping[str, int]) -> dict[KeyPath, Any]:
    """Return the changes of a choice to the recipe."""
    options = [dimension.options[choice.get(dimension.key, dimension.own)] for dimension in space]
    return {path: value for option in options for path, value in option.changes.items()}


def _usual(recipe: Recipe, usual: Usual) -> Dimension | None:
    """Return the options that the recipe accepts; None if the recipe lacks the key."""
    paths = _paths(recipe, usual.key)
    owns = {path: _own(recipe, path) for path in paths}
    if not owns or any(own_index is None or own_index == [] for own_index in owns.values()):
        return None
    if usual.factors and any(owns.values()):
        several = len(paths) > 1
        options = [
            Option(
                f"x{factor:g}" if several else _text(_scaled(owns[paths[0]], factor)),
                {path: _scaled(own_index, factor) for path, own_index in owns.items()} if factor != 1 else {},
            )
            for factor in usual.factors
        ]
        own_index = usual.factors.index(1)
    elif usual.values:
        values = sorted({*usual.values, *owns.values()})
        own_index = values.index(owns[paths[0]])
        options = [
            Option(_text(value), {} if i == own_index else dict.fromkeys(paths, value))
            for i, value in enumerate(values)
        ]
    else:
        return None
    seen: list[Mapping[KeyPath, Any]] = [owns]
    for option in [option for option in options if option.changes]:
        if option.changes in seen or not _works(recipe, option):
            options.remove(option)
        seen.append(option.changes)
    own_index = next(i for i, option in enumerate(options) if not option.changes)
    return Dimension(usual.key, tuple(options), own_index)


def _works(recipe: Recipe, option: Option) -> bool:
    """Return whether the recipe accepts an option and the option changes the model."""
    try:
        before, after = (make_model(r, r.schema()) for r in (recipe, recipe.changed(option.changes)))
    except ConfigError:
        return False
    dims = getattr(after, "embedding_dims", None)
    widths = all(path[0] == "features" for path in option.changes)
    return not (widths and dims is not None and dims == getattr(before, "embedding_dims", None))


def _asked(recipe: Recipe, key: str, values: Sequence[Any]) -> Dimension:
    """Return the options of a key of `tune.search`, including the recipe's value."""
    where = recipe.source.where((*SEARCH, key))
    try:
        paths = _paths(recipe, key)
        if not paths:
            raise ConfigError(
                f"{key} cannot be varied",
                why="the recipe has no ids, or their tables start with rows from a file, which fix the width",
                fix="remove the key from tune.search",
            )
        owns = {path: _own(recipe, path) for path in paths}
        for changes in (owns, *(dict.fromkeys(paths, value) for value in values)):
            tried = recipe.changed(changes)
            make_model(tried, tried.schema())
    except ConfigError as error:
        raise ConfigError(error.what, where=where, why=error.why, fix=error.fix) from error
    same = len({str(own) for own in owns.values()}) == 1
    own = owns[paths[0]] if same else None
    if own not in values:
        values = [own, *values]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        values = sorted(values)
    at = values.index(own)
    options = tuple(
        Option("as it is" if value is None else _text(value), {} if i == at else dict.fromkeys(paths, value))
        for i, value in enumerate(values)
    )
    ordered = all(isinstance(v, int | float | list) and not isinstance(v, bool) for v in values)
    return Dimension(key, options, at, ordered)


def _paths(recipe: Recipe, key: str) -> list[KeyPath]:
    """Return the paths in a recipe that match a dotted key and can be varied."""
    features = recipe.sections.features
    if key in FIXED or key.startswith(tuple(f"{fixed}." for fixed in FIXED)):
        raise ConfigError(
            f"{key} cannot be varied",
            why="this key changes the measurement, or has no effect on it",
            fix="remove the key from tune.search",
        )
    fixed_width = _given(recipe) if key.endswith(".dim") else set()
    if key.startswith(ALL_IDS):
        ids = [name for name, keys in features.items() if isinstance(keys, Categorical)]
        last = key.removeprefix(ALL_IDS).split(".")
        return [("features", name, *last) for name in ids if name not in fixed_width]
    section, _, rest = key.partition(".")
    if section != "features":
        nothing = section == "embedding" and not recipe.schema().categorical
        return [] if nothing else [tuple(key.split("."))]
    name = next((name for name in features if rest.startswith(f"{name}.")), None)  # names may have dots
    if name is None:
        wrong = rest.rpartition(".")[0] or rest
        raise ConfigError(
            f"feature {wrong!r} does not exist",
            fix=f"{did_you_mean(wrong, features)}features: {', '.join(features)}; for all ids: {ALL_IDS}dim",
        )
    return [("features", name, *rest.removeprefix(f"{name}.").split("."))] if name not in fixed_width else []


def _given(recipe: Recipe) -> set[str]:
    """Return the categorical features whose tables start with rows from a file, which fix the width."""
    schema = recipe.schema()
    tables = {name for name, settings in recipe.sections.tables.items() if settings.rows is not None}
    return {name for name in schema.categorical if schema.table_of(name) in tables}


def _own(recipe: Recipe, path: KeyPath) -> Any:
    """Return the recipe's value at a path; None if it has none."""
    model = recipe.sections.model
    arguments = model.model_extra or {}
    defaults = {} if model.name is None else models.arguments(model.name, arguments.get("preset"))
    if path[0] == "model" and path[1:] in [(name,) for name in defaults]:
        plain: Any = arguments.get(str(path[1]), defaults[str(path[1])])
    elif path[0] == "features" and path[2:] == ("dim",):
        plain = recipe.schema().categorical[str(path[1])].dim  # a resolved recipe omits defaults
    else:
        plain = reduce(_inside, path, recipe.resolved())
    return list(plain) if isinstance(plain, tuple) else plain


def _inside(plain: Any, part: str | int) -> Any:
    return plain.get(part) if isinstance(plain, Mapping) else None


def _scaled(value: Any, factor: float) -> Any:
    """Return a number or list times a factor: integers stay integers, others are rounded to two digits."""
    if isinstance(value, list):
        return [_scaled(item, factor) for item in value]
    if isinstance(value, int):
        return max(1, round(value * factor))
    return value if factor == 1 else float(f"{value * factor:.2g}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else to_yaml(value, flow=True).strip()
