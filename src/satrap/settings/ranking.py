"""Ranking metrics of evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from satrap.errors import ConfigError
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

    The samples of a group, such as the results of a search, are the candidates of one query; those with label
    1 are relevant. For definitions, and for candidates with equal scores, see
    `satrap.metrics.RankingMetrics`.

    Args:
        at: the values of k, each at least 1, for example [5, 10].

    Raises:
        ConfigError: no k, one below 1, or one twice.
    """

    at: tuple[int, ...]

    def __post_init__(self) -> None:
        check_lengths(self.at)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics; higher values of all are better."""
        return ranking_names(self.at)

    def check(self, schema: Schema) -> None:
        """Raise `ConfigError` unless a schema has what the metrics need."""
        if schema.group is None:
            raise ConfigError(
                "ranking needs a group column",
                why="the samples of a group are the candidates of one query",
                fix="set group in the schema to a column, such as the id of the user or of the search",
            )
        if all(label.kind != "binary" for label in schema.labels):
            raise ConfigError(
                "ranking needs a binary label",
                why="samples with label 1 are the relevant ones",
                fix="for a rating, use a binary label with threshold, such as threshold: 4",
            )
