"""What a search varies: keys of a recipe, and the values to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from satrap import models
from satrap.config import Recipe, to_yaml
from satrap.config.keys import CategoricalKeys
from satrap.config.source import SEARCH, KeyPath
from satrap.errors import ConfigError, did_you_mean
from satrap.launch.build import make_model

ALL_IDS = "features.*."
"""Begins a key that all categorical features have."""

FIXED = (
    *("labels", "weight", "group", "about", "checkpoint", "tune", "training.monitor", "training.metrics"),
    *(f"data.{key}" for key in ("train", "validation", "test", "format", "split", "join")),
)
"""Keys that decide what is measured, or how, or nothing at all: trials that differ in them tell nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """A value to try: how tables show it, and what it sets in the recipe (nothing: the recipe's own)."""

    text: str
    changes: Mapping[KeyPath, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dimension:
    """A key and its options, of which `own` leaves the recipe as it is; `ordered`: neighbours are alike."""

    key: str
    options: tuple[Option, ...]
    own: int
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Usual:
    """A key that is tried unless the recipe says otherwise.

    The recipe's value is multiplied by each of `factors`. `values` are tried where it is 0, or where there
    are no factors.
    """

    key: str
    why: str
    factors: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


_DECAYS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)

USUAL = (
    Usual(
        "embedding.optimizer.lr",
        "too low, and rare ids learn nothing; too high, and they overfit",
        (0.1, 0.2, 0.5, 1, 2, 5),
    ),
    Usual(
        "embedding.optimizer.initial_accumulator",
        "how small the first steps of an id are: a prior for rare ids (decision 0012)",
        (0.01, 0.1, 1, 10, 100),
    ),
    Usual("embedding.optimizer.weight_decay", "pulls rows of rare ids to 0", (0, 0.1, 1, 10), values=_DECAYS),
    Usual("embedding.optimizer.l2", "the same, of FTRL", (0, 0.1, 1, 10), values=_DECAYS),
    Usual("embedding.initial_scale", "how much new rows disturb before they are learned", (0.1, 1, 10)),
    Usual("features.*.dim", "what a row can hold, and how much it can overfit", (0.25, 0.5, 1, 2, 4)),
    Usual("dense.optimizer.lr", "rows and network learn at different speeds", (0.1, 0.3, 1, 3)),
    Usual("dense.optimizer.weight_decay", "keeps the network plain", (0, 0.1, 1, 10), values=_DECAYS),
    Usual("model.hidden", "what the network can hold", (0.5, 1, 2, 4)),
    Usual("model.dropout", "against overfitting of the network", values=(0, 0.1, 0.2, 0.3, 0.5)),
    Usual("data.batch_size", "more steps in a pass, or steadier ones", (0.25, 0.5, 1, 2)),
)
"""What most often matters, in the order in which tables show it."""


def space_of(recipe: Recipe) -> tuple[Dimension, ...]:
    """Return what a search of this recipe varies: the usual keys, and those of `tune.search`.

    Raises:
        ConfigError: `tune.search` names a key that is not there or cannot be compared, or a value that the
            recipe refuses; or there is nothing to try.
    """
    asked = recipe.sections.tune.search
    found = []
    if recipe.sections.tune.usual:
        left = [u for u in USUAL if not any(u.key == key or u.key.startswith(f"{key}.") for key in asked)]
        found += [_usual(recipe, usual) for usual in left]
    found += [_asked(recipe, key, values) for key, values in asked.items()]
    dimensions = tuple(one for one in found if one is not None and len(one.options) > 1)
    if not dimensions:
        raise ConfigError(
            "there is nothing to try",
            where=recipe.source.where(("tune",)),
            fix="name keys in tune.search, for example --set 'tune.search.dense.optimizer.lr=[0.001, 0.003]'",
        )
    return dimensions


def chosen(recipe: Recipe, space: Sequence[Dimension], choice: Mapping[str, int]) -> Recipe:
    """Return the recipe with the options of a choice, key -> number; keys that it lacks stay as they are."""
    return recipe.changed(changes_of(space, choice))


def changes_of(space: Sequence[Dimension], choice: Mapping[str, int]) -> dict[KeyPath, Any]:
    """Return what a choice sets in the recipe."""
    options = [one.options[choice.get(one.key, one.own)] for one in space]
    return {path: value for option in options for path, value in option.changes.items()}


def _usual(recipe: Recipe, usual: Usual) -> Dimension | None:
    """Return the options that the recipe takes; None if it does not have the key."""
    paths = _paths(recipe, usual.key)
    owns = {path: _own(recipe, path) for path in paths}
    if not owns or any(own is None or own == [] for own in owns.values()):
        return None
    if usual.factors and any(owns.values()):
        several = len(paths) > 1
        options = [
            Option(
                f"x{factor:g}" if several else _text(_scaled(owns[paths[0]], factor)),
                {path: _scaled(own, factor) for path, own in owns.items()} if factor != 1 else {},
            )
            for factor in usual.factors
        ]
        own = usual.factors.index(1)
    elif usual.values:
        values = sorted({*usual.values, *owns.values()})
        own = values.index(owns[paths[0]])
        options = [
            Option(_text(value), {} if i == own else dict.fromkeys(paths, value))
            for i, value in enumerate(values)
        ]
    else:
        return None
    seen: list[Mapping[KeyPath, Any]] = [owns]
    for option in [option for option in options if option.changes]:
        if option.changes in seen or not _works(recipe, option):
            options.remove(option)
        seen.append(option.changes)
    own = next(i for i, option in enumerate(options) if not option.changes)
    return Dimension(usual.key, tuple(options), own)


def _works(recipe: Recipe, option: Option) -> bool:
    """Return whether the recipe takes an option and is another one with it."""
    try:
        before, after = (make_model(r, r.schema()) for r in (recipe, recipe.changed(option.changes)))
    except ConfigError:
        return False
    dims = getattr(after, "embedding_dims", None)
    widths = all(path[0] == "features" for path in option.changes)
    return not (widths and dims is not None and dims == getattr(before, "embedding_dims", None))


def _asked(recipe: Recipe, key: str, values: Sequence[Any]) -> Dimension:
    """Return the options of a key of `tune.search`, with the recipe's own among them."""
    where = recipe.source.where((*SEARCH, key))
    try:
        paths = _paths(recipe, key)
        if not paths:
            raise ConfigError(
                f"{key} cannot be tried",
                why="there are no ids, or rows of a file begin their tables, and have a width already",
                fix="remove it from tune.search",
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
    """Return the places in a recipe that a dotted key names and that can be varied."""
    features = recipe.sections.features
    if key in FIXED or key.startswith(tuple(f"{fixed}." for fixed in FIXED)):
        raise ConfigError(
            f"{key} cannot be tried",
            why="it decides what is measured, or has no effect on it",
            fix="remove it from tune.search",
        )
    given = _given(recipe) if key.endswith(".dim") else set()
    if key.startswith(ALL_IDS):
        ids = [name for name, keys in features.items() if isinstance(keys, CategoricalKeys)]
        last = key.removeprefix(ALL_IDS).split(".")
        return [("features", name, *last) for name in ids if name not in given]
    section, _, rest = key.partition(".")
    if section != "features":
        nothing = section == "embedding" and not recipe.schema().categorical
        return [] if nothing else [tuple(key.split("."))]
    name = next((name for name in features if rest.startswith(f"{name}.")), None)  # names may have dots
    if name is None:
        wrong = rest.rpartition(".")[0] or rest
        raise ConfigError(
            f"there is no feature {wrong!r}",
            fix=f"{did_you_mean(wrong, features)}features: {', '.join(features)}; of all ids: {ALL_IDS}dim",
        )
    return [("features", name, *rest.removeprefix(f"{name}.").split("."))] if name not in given else []


def _given(recipe: Recipe) -> set[str]:
    """Return the ids whose tables begin with rows of a file, which have a width already."""
    schema = recipe.schema()
    tables = {name for name, own in recipe.sections.tables.items() if own.rows is not None}
    return {name for name in schema.categorical if schema.table_of(name) in tables}


def _own(recipe: Recipe, path: KeyPath) -> Any:
    """Return the recipe's own value at a path; None if it has none."""
    model = recipe.sections.model
    given = model.model_extra or {}
    defaults = {} if model.name is None else models.arguments(model.name, given.get("preset"))
    if path[0] == "model" and path[1:] in [(name,) for name in defaults]:
        plain: Any = given.get(str(path[1]), defaults[str(path[1])])
    elif path[0] == "features" and path[2:] == ("dim",):
        plain = recipe.schema().categorical[str(path[1])].dim  # a resolved recipe leaves defaults out
    else:
        plain = reduce(_inside, path, recipe.resolved())
    return list(plain) if isinstance(plain, tuple) else plain


def _inside(plain: Any, part: str | int) -> Any:
    return plain.get(part) if isinstance(plain, Mapping) else None


def _scaled(value: Any, factor: float) -> Any:
    """Return a number, or the numbers of a list, times a factor: whole ones whole, others with two digits."""
    if isinstance(value, list):
        return [_scaled(one, factor) for one in value]
    if isinstance(value, int):
        return max(1, round(value * factor))
    return value if factor == 1 else float(f"{value * factor:.2g}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else to_yaml(value, flow=True).strip()
