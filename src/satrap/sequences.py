"""Sequences: features that describe the same events of a sample, such as the columns of a history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from satrap.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The features of a sequence. Each has one value per event, in the same order.

    Args:
        ids: its categorical features, at least one, in the order of the schema.
        numbers: its numeric features.
        max_values: most events to keep per sample; None: all.
        keep: the events to keep, the "first" or the "last".
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
        ConfigError: a feature cannot be part of a sequence, a sequence has no categorical feature, or the
            limits of its features differ.
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
                raise ConfigError(
                    f"feature {name!r}: separator needs sequence; without sequence the feature is one number"
                )
            continue
        if number.sequence not in members:
            raise ConfigError(
                f"feature {name!r}: no categorical feature is part of sequence {number.sequence!r}",
                why="a sequence needs a categorical feature, which identifies its events",
                fix=f"set sequence: {number.sequence} in a categorical feature",
            )
        numbers[number.sequence].append(name)
    return {
        sequence: SequenceGroup(tuple(names), tuple(numbers[sequence]), *_limit(names, categorical))
        for sequence, names in members.items()
    }


def sequence_of(groups: Mapping[str, SequenceGroup], name: str) -> SequenceGroup:
    """Return a sequence by its name; raise `ConfigError` if it does not exist."""
    if name not in groups:
        raise ConfigError(
            f"no feature is part of a sequence {name!r}",
            why="the model uses the events of this sequence",
            fix=f"{did_you_mean(name, groups)}use one of the sequences: {', '.join(groups) or 'none exists'}",
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
                f"feature {name!r}: sequence cannot be combined with {what}",
                why="the model sees one row per event",
                fix="set multi: true and pooling: none; instead of cross, add a combined column to the data",
            )


def _limit(names: list[str], categorical: Mapping[str, Any]) -> tuple[int | None, Literal["first", "last"]]:
    """Return (max_values, keep) of a sequence; features that set a limit must set the same one."""
    limited = [name for name in names if categorical[name].max_values is not None]
    for name in limited[1:]:
        first, other = categorical[limited[0]], categorical[name]
        if (first.max_values, first.keep) != (other.max_values, other.keep):
            raise ConfigError(
                f"feature {name!r} keeps the {other.keep} {other.max_values} events, {limited[0]!r} the "
                f"{first.keep} {first.max_values}",
                why=f"both features are part of sequence {first.sequence!r}, whose columns must stay aligned",
                fix="set max_values and keep in one of the features only",
            )
    if not limited:
        return None, "first"
    return categorical[limited[0]].max_values, categorical[limited[0]].keep
