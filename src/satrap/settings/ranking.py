"""Ranking metrics of evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from satrap.errors import ConfigError, did_you_mean
from satrap.runtime.arguments import checked
from satrap.schema import Schema

RANKING_METRICS = ("hit_rate", "recall", "precision", "ndcg", "mrr", "map")
"""Metrics of the first k places of a list."""


def ranking_names(at: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the metrics of the first k places for each k, such as `ndcg@10`."""
    return tuple(f"{name}@{k}" for k in at for name in RANKING_METRICS)


def check_lengths(at: Sequence[int]) -> None:
    """Raise `ConfigError` unless there is a k, and each is at least 1 and given once."""
    if not at or min(at) < 1 or len(set(at)) < len(at):
        raise ConfigError(
            f"at must be different whole numbers >= 1, got {list(at)}",
            why="a ranking metric looks at the first k places of a list",
            fix="for example at: [5, 10]",
        )


@checked()
@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranking metrics of evaluations: `hit_rate@k`, `recall@k`, `precision@k`, `ndcg@k`, `mrr@k` and `map@k`.

    A query has a list of candidates, and some of them are relevant. For definitions, and for candidates with
    equal scores, see `satrap.metrics.RankingMetrics`.

    Args:
        at: the values of k, each at least 1, for example [5, 10].
        among: the candidates. group: the samples of the same `group`, such as the results of a search; those
            with label 1 are relevant. items: all items of the training rows and of the evaluated rows, or
            all items of `data.items`, ranked for each sample with label 1 by a model with towers; the
            sample's item is relevant. Samples of a group with the same user and the same list are one query.
        exclude: with items, a feature whose items are not candidates of a sample, except the sample's own
            item; default none. A feature of several ids, such as a history: the items in it. A feature of one
            id, such as the user: the items of the training rows with the same id, and label 1.

    Raises:
        ConfigError: no k, one below 1, or one twice; `exclude` without items.
    """

    at: tuple[int, ...]
    among: Literal["group", "items"] = "group"
    exclude: str | None = None

    def __post_init__(self) -> None:
        check_lengths(self.at)
        if self.exclude is not None and not self.of_items:
            raise ConfigError(
                f"exclude: {self.exclude} has no effect without among: items",
                why="the candidates are the samples of a group",
                fix="remove exclude, or set among: items",
            )

    @property
    def of_items(self) -> bool:
        """Whether all items are ranked."""
        return self.among == "items"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics; higher values of all are better."""
        return ranking_names(self.at)

    def excludes_seen(self, schema: Schema) -> bool:
        """Whether `exclude` names users, whose items in training rows are not candidates."""
        return self.exclude is not None and not schema.categorical[self.exclude].multi

    def check(self, schema: Schema) -> None:
        """Raise `ConfigError` unless a schema has the group, label and feature that the metrics need."""
        if not self.of_items and schema.labels and all(label.implicit for label in schema.labels):
            raise ConfigError(
                "ranking within groups needs a label with a column, but the label is implicit",
                why="all samples of a group would be relevant",
                fix="set among: items",
            )
        if not self.of_items and schema.group is None:
            raise ConfigError(
                "ranking needs a group column",
                why="the samples of a group are the candidates of one query",
                fix="set group in the schema to a column, such as the id of the user or of the search",
            )
        if self.of_items and len(schema.labels) > 1:
            raise ConfigError(
                f"ranking among items needs one label, but there are {len(schema.labels)}",
                why="samples with label 1 have the relevant items",
            )
        if all(label.kind != "binary" for label in schema.labels):
            raise ConfigError(
                "ranking needs a binary label",
                why="samples with label 1 are the relevant ones",
                fix="for a rating, use a binary label with threshold, such as threshold: 4",
            )
        if self.exclude is not None:
            names = list(schema.categorical)
            if self.exclude not in names:
                near = did_you_mean(self.exclude, names)
                raise ConfigError(
                    f"exclude names {self.exclude!r}, which is not a categorical feature",
                    why="it is a list of items, such as a history, or the user whose training rows have them",
                    fix=f"{near}categorical features: {', '.join(names) or 'none'}",
                )
