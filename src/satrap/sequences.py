"""Sequences: features that say something of the same events of a sample, such as the columns of a history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from satrap.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The features of a sequence. They have a value for each event, in the same order.

    Args:
        ids: its categorical features, at least one, in the order of the schema.
        numbers: its numeric features.
        max_values: events of a sample that are kept; None: all.
        keep: which of them, the "first" or the "last".
    """

    ids: tuple[str, ...]
    numbers: tuple[str, ...]
    max_values: int | None
    keep: Literal["first", "last"]


def sequence_groups(categorical: Mapping[str, Any], numeric: Mapping[str, Any]) -> dict[str, SequenceGroup]:
    """Return the sequences that features name, in the order of their first categorical feature.

    Args:
        categorical: name -> `Categorical`, all of a schema.
        numeric: name -> `Numeric`, all of a schema.

    Raises:
        ConfigError: a feature that cannot be part of a sequence, no categorical one, or limits that differ.
    """
    members: dict[str, list[str]] = {}
    for name, feature in categorical.items():
        if feature.sequence is not None:
            _check_events(name, feature)
            members.setdefault(feature.sequence, []).append(name)
    numbers: dict[str, list[str]] = {sequence: [] for sequence in members}
    for name, number in numeric.items():
        if number.sequence is None:
            if number.separator is not None:
                raise ConfigError(f"feature {name!r}: separator needs sequence, since it is one number")
            continue
        if number.sequence not in members:
            raise ConfigError(
                f"feature {name!r}: no categorical feature is part of sequence {number.sequence!r}",
                why="events are told apart by ids, and numbers say more of them",
                fix=f"give a categorical feature sequence: {number.sequence}",
            )
        numbers[number.sequence].append(name)
    return {
        sequence: SequenceGroup(tuple(names), tuple(numbers[sequence]), *_limit(names, categorical))
        for sequence, names in members.items()
    }


def sequence_of(groups: Mapping[str, SequenceGroup], name: str) -> SequenceGroup:
    """Return a sequence by its name; raise `ConfigError` if there is none of it."""
    if name not in groups:
        raise ConfigError(
            f"no feature is part of a sequence {name!r}",
            why="its events are to be counted",
            fix=f"{did_you_mean(name, groups)}give a sequence's name: {', '.join(groups) or 'there is none'}",
        )
    return groups[name]


def _check_events(name: str, feature: Any) -> None:
    for wrong, what in (
        (not feature.multi, "multi: false"),
        (feature.pooling != "none", f"pooling: {feature.pooling}"),
        (feature.cross is not None, "cross"),
    ):
        if wrong:
            raise ConfigError(
                f"feature {name!r}: sequence does not go with {what}",
                why="the model sees a row for each event",
                fix="set multi: true and pooling: none; of a cross, make a column before",
            )


def _limit(names: list[str], categorical: Mapping[str, Any]) -> tuple[int | None, Literal["first", "last"]]:
    """Return the limit of the features that give one, which must be the same."""
    given = [name for name in names if categorical[name].max_values is not None]
    for name in given[1:]:
        one, other = categorical[given[0]], categorical[name]
        if (one.max_values, one.keep) != (other.max_values, other.keep):
            raise ConfigError(
                f"feature {name!r} keeps the {other.keep} {other.max_values} events, {given[0]!r} the "
                f"{one.keep} {one.max_values}",
                why=f"both are part of sequence {one.sequence!r}, whose columns stay aligned",
                fix="give max_values and keep to one of them",
            )
    if not given:
        return None, "first"
    return categorical[given[0]].max_values, categorical[given[0]].keep
