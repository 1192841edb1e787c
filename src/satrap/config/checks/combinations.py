"""Checks the settings of a recipe against `satrap.compatibility`."""

from typing import Any

from satrap import compatibility
from satrap.compatibility import IMPLICIT, NO_TABLES, PAIRS, PLACED, SETTINGS, SEVERAL
from satrap.config.checks.tables import RetentionKeys, kept
from satrap.config.keys.derive import Keys
from satrap.config.keys.sections import Sections
from satrap.config.source import KeyPath, RecipeSource, dotted
from satrap.losses import PairLoss


def check_combinations(sections: Sections, source: RecipeSource, **more: Any) -> None:
    """Raise `ConfigError` for the first rule that a recipe breaks.

    Args:
        sections: the recipe.
        source: its places, for errors.
        more: settings without a key.
    """
    tables, cluster = kept(sections), sections.cluster
    settings = {key: _value(sections, key) for key in SETTINGS}
    settings |= {NO_TABLES: not tables, SEVERAL: sections.shares > 1}
    if sections.shares == 1:
        settings["dense.sharded"] = False
    # auto sees the rules
    ignored = (None, "row_wise", "auto") if cluster.exchange == "collective" else (None, "row_wise")
    placement = settings["cluster.placement"] = (
        "row_wise" if cluster.placement in ignored else cluster.placement
    )
    chosen = {name: where for name, where in cluster.placements.items() if where != "row_wise"}
    replicas = [name for name, where in chosen.items() if where == "replicated"]
    settings["cluster.placements"] = chosen and ("divided" if len(replicas) < len(chosen) else "replicated")
    others = {} if placement == "row_wise" else tables.keys() - cluster.placements.keys()
    placed = {name: table for name, table in tables.items() if name in chosen or name in others}
    paths = _deciding(tables, ("embedding.eviction", "embedding.admission"))
    paths |= _deciding(placed, (PLACED[0], PLACED[0]))
    implicit = [number for number, label in enumerate(sections.labels) if label.implicit]
    paths |= {PAIRS: ("training", "loss"), IMPLICIT: ("labels", *implicit[:1], "implicit")}
    if limited := [name for name, table in placed.items() if table.memory is not None]:
        paths[PLACED[1]] = ("tables", limited[0], "memory")
    settings |= {"embedding.eviction": False, "embedding.admission": False} | dict.fromkeys(paths, True)
    settings[PAIRS] = isinstance(sections.training.loss, PairLoss)
    settings[IMPLICIT] = bool(implicit)

    def path(key: str) -> KeyPath:
        return paths.get(key, (key,) if key == NO_TABLES else tuple(key.split(".")))

    compatibility.check(settings | more, lambda key: dotted(path(key)), lambda key: source.where(path(key)))


def _value(sections: Sections, key: str) -> Any:
    """Return the value of a key; None if its section is absent or has its default."""
    owner: Any = None
    value: Any = sections
    for part in key.split("."):
        owner, value = value, getattr(value, part, None)
    if isinstance(value, Keys) and value == type(owner).model_fields[part].get_default(
        call_default_factory=True
    ):
        return None
    return value


def _deciding(tables: dict[str, RetentionKeys], names: tuple[str, str]) -> dict[str, KeyPath]:
    """Return the keys by which the first tables drop rows, and deny rows, by the given names."""
    first: dict[str, KeyPath] = {}
    for table in tables.values():
        for path in table.decided_by:
            first.setdefault(names[path[-1] == "admission"], path)
    return first
