"""Metrics of ranked lists: hit rate, recall, precision, NDCG, MRR and MAP of the first k places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.errors import DataError
from satrap.metrics.reservoir import KeyReservoir
from satrap.runtime.arguments import checked
from satrap.settings.ranking import RANKING_METRICS, check_lengths, ranking_names

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

FOUND: Mapping[str, Array] = {
    "queries": np.empty(0, np.uint64),
    "items": np.empty(0, np.uint64),
    "ranks": np.empty(0, np.int64),
    "tied": np.empty(0, np.int64),
}
"""Columns of relevant items."""

CANDIDATES: Mapping[str, Array] = {
    "groups": np.empty(0, np.uint64),
    "scores": np.empty(0, np.float32),
    "relevant": np.empty(0, np.bool_),
}
"""Columns of candidates."""


@checked()
class RankingMetrics:
    """Metrics of ranked lists, from the ranks of the relevant items.

    ```python
    metrics = satrap.metrics.RankingMetrics([5, 10])
    metrics.update(users, items, ranks)          # of each relevant item: 1 is the top of its user's list
    metrics.compute()["ndcg@10"]
    ```

    A query, such as a user, has one list of candidates and m relevant items among them. Each metric is the
    mean over the queries that have a relevant item; sample weights do not count. Of the first k places:

    - `hit_rate@k`: 1 if a relevant item is there, else 0.
    - `recall@k`: relevant items there / m.
    - `precision@k`: relevant items there / k.
    - `ndcg@k`: sum over the relevant items there of 1 / log2(1 + rank), divided by its largest possible
      value, with min(m, k) relevant items in the first places. Järvelin and Kekäläinen, "Cumulated
      gain-based evaluation of IR techniques", ACM TOIS 2002, with the discount of Burges et al., "Learning to
      Rank using Gradient Descent", ICML 2005.
    - `mrr@k`: 1 / rank of the first relevant item, 0 if it is not there. Voorhees, "The TREC-8 Question
      Answering Track Report", 1999.
    - `map@k`: sum over the relevant items there of precision at their rank, divided by min(m, k). Manning et
      al., "Introduction to Information Retrieval", 2008, section 8.4, cut at k.

    Also `queries`, the number of queries, and `queries_share`, 1 while exact.

    **Ties.** Candidates with equal scores have no order. Each metric is its exact expected value over all
    orders of the tied candidates, all equally likely: McSherry and Najork, "Computing Information Retrieval
    Performance Measures Efficiently in the Presence of Tied Scores", ECIR 2008. So equal scores for all
    candidates get the values of a random order, neither better nor worse.

    Memory is 32 bytes per relevant item, up to `limit` items. With more, half of the queries, chosen by hash,
    are dropped at a time; `queries_share` is the share that is kept. The order of updates and merges does not
    matter.

    Args:
        at: the values of k, each at least 1.
        limit: most relevant items to keep, default 4,000,000.

    Raises:
        ConfigError: no k, one below 1, or one twice.
    """

    def __init__(self, at: Sequence[int], *, limit: int = 4_000_000) -> None:
        check_lengths(at)
        self.at = tuple(sorted(at))
        self._found = KeyReservoir(FOUND, "queries", limit)

    def reset(self) -> None:
        """Remove all queries."""
        self._found.clear()

    def update(self, queries: Array, items: Array, ranks: Array, *, tied: Array | None = None) -> None:
        """Add n relevant items; the arrays are copied.

        Args:
            queries: uint64[n], the query of each.
            items: uint64[n], its id; an item of a query that is given several times counts once.
            ranks: int[n] from 1: 1 + the number of candidates of the query with a higher score.
            tied: int[n] from 1: the number of candidates with its score, including itself; default 1.

        Raises:
            DataError: lengths differ, or a rank or number is below 1. The metrics are then unchanged.
        """
        equal = np.ones(len(ranks), np.int64) if tied is None else tied
        columns = dict(zip(FOUND, (queries, items, ranks, equal), strict=True))
        if len({len(column) for column in columns.values()}) > 1:
            raise DataError(
                "ranked items differ in number: " + ", ".join(f"{len(c)} {n}" for n, c in columns.items())
            )
        if len(ranks) and min(np.min(ranks), np.min(equal)) < 1:
            raise DataError("a rank or a number of tied candidates is below 1", why="ranks count from 1")
        self._found.add({name: np.array(column, FOUND[name].dtype) for name, column in columns.items()})

    def merge(self, other: RankingMetrics) -> None:
        """Add all queries of `other`, which has the same `at` and does not change."""
        self._found.merge(other._found)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, see the class; NaN without queries."""
        runs = _runs_of(**self._found.rows())
        queries = len(runs.relevant)
        sums = _sums(runs, self.at)
        values = {name: sums[name] / queries if queries else math.nan for name in ranking_names(self.at)}
        return values | {"queries": queries, "queries_share": self._found.share}

    def state(self) -> dict[str, Array]:
        """Return the state as arrays, for another process or a checkpoint."""
        return self._found.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a `state` of metrics with the same arguments."""
        self._found.restore(state)


@checked()
class GroupRankingMetrics:
    """Ranking metrics within groups of samples, such as the results of a search, from scores and labels.

    A group is a query, its samples are the candidates, those with label 1 the relevant items. For the metrics
    and for ties see `RankingMetrics`. Groups without a relevant sample are left out and counted in
    `queries_skipped`. A score that is not a number counts against the model.

    Memory is 13 bytes per sample, up to `limit` samples; with more, groups are dropped as there.

    Args:
        at: the values of k, each at least 1.
        limit: most samples to keep, default 4,000,000.

    Raises:
        ConfigError: as `RankingMetrics`.
    """

    def __init__(self, at: Sequence[int], *, limit: int = 4_000_000) -> None:
        check_lengths(at)
        self.at = tuple(sorted(at))
        self._candidates = KeyReservoir(CANDIDATES, "groups", limit)

    def reset(self) -> None:
        """Remove all samples."""
        self._candidates.clear()

    def update(self, groups: Array, scores: Array, relevant: Array) -> None:
        """Add n samples: groups uint64[n], scores float32[n], relevant bool[n]; the arrays are copied."""
        columns = zip(CANDIDATES.items(), (groups, scores, relevant), strict=True)
        self._candidates.add({name: np.array(column, empty.dtype) for (name, empty), column in columns})

    def merge(self, other: GroupRankingMetrics) -> None:
        """Add all samples of `other`, which has the same `at` and does not change."""
        self._candidates.merge(other._candidates)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, see the class; NaN if no group has a relevant sample."""
        groups, scores, relevant = self._candidates.rows().values()
        scores = np.where(np.isnan(scores), np.where(relevant, -np.inf, np.inf), scores)
        order = np.lexsort((-scores, groups))
        groups, scores, relevant = groups[order], scores[order], relevant[order]
        first = _starts(groups)
        tie = _starts(groups, scores)
        place = np.arange(len(groups))
        ranks = 1 + tie - first
        tied = np.bincount(tie, minlength=len(groups))[tie]
        ranked = RankingMetrics(self.at, limit=len(groups))
        ranked.update(groups[relevant], place[relevant], ranks[relevant], tied=tied[relevant])
        values = ranked.compute()
        skipped = int(np.count_nonzero(first == place)) - values["queries"]
        return values | {"queries_share": self._candidates.share, "queries_skipped": skipped}

    def state(self) -> dict[str, Array]:
        """Return the state as arrays, for another process or a checkpoint."""
        return self._candidates.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a `state` of metrics with the same arguments."""
        self._candidates.restore(state)


class _Runs(NamedTuple):
    """Runs of tied candidates with at least one relevant item, in the order of their lists.

    Attributes:
        relevant: int[queries], the relevant items of each query.
        query: int[runs], index of the query.
        above: int[runs], candidates above the run.
        before: int[runs], relevant items above it.
        size, hits: int[runs], candidates and relevant items in it.
    """

    relevant: Ints
    query: Ints
    above: Ints
    before: Ints
    size: Ints
    hits: Ints


def _starts(*columns: Array) -> Ints:
    """Return, for each row of sorted columns, the first row that is equal to it: int[n]."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    starts: Ints = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    return starts


def _runs_of(queries: Ids, items: Ids, ranks: Ints, tied: Ints) -> _Runs:
    order = np.lexsort((ranks, items, queries))
    once = order[_starts(queries[order], items[order]) == np.arange(len(order))]
    order = once[np.lexsort((ranks[once], queries[once]))]
    queries, ranks, tied = queries[order], ranks[order], tied[order]
    first = _starts(queries)
    start = _starts(queries, ranks)
    run = np.flatnonzero(start == np.arange(len(start)))
    hits = np.diff(np.append(run, len(start)))
    new_query = first[run] == run
    query = np.cumsum(new_query) - 1
    before = run - first[run]
    # Ranks of one list leave room for the relevant items above. These lines change only ranks that do not,
    # such as ranks by products that were rounded differently for the same user.
    others = ranks[run] - 1 - before
    spread = query * (others.max(initial=0) - others.min(initial=0) + 1)
    above = before + np.maximum.accumulate(np.maximum(others, 0) + spread) - spread
    size = np.maximum(np.maximum.reduceat(tied, run) if len(run) else tied, hits)
    relevant = np.bincount(query, weights=hits).astype(np.int64)
    return _Runs(relevant, query, above, before, size, hits)


def _sums(runs: _Runs, at: Sequence[int]) -> dict[str, float]:
    """Return the sum over the queries of each metric's expected value.

    Goes through the runs place by place: place j of a run of n candidates, h of them relevant, holds a
    relevant item with probability h / n, and then h - 1 others share the other n - 1 places.
    """
    sums = dict.fromkeys(ranking_names(at), 0.0)
    most = max(at)
    ideal = np.cumsum(1 / np.log2(np.arange(2, most + 2)))
    left = runs.above < most
    query, above, before, size, hits = (column[left] for column in runs[1:])
    m = runs.relevant[query]
    unseen = np.where(before == 0, 1.0, 0.0)  # probability that no relevant item is above the place
    for j in range(1, most + 1):
        left = (j <= size) & (above + j <= most)
        if not left.any():
            break
        query, above, before, size, hits, m, unseen = (
            column[left] for column in (query, above, before, size, hits, m, unseen)
        )
        place, share = above + j, hits / size
        earlier = before + 1 + (j - 1) * (hits - 1) / np.maximum(size - 1, 1)
        first = unseen * hits / (size - j + 1)
        first = np.minimum(first, unseen)  # the last places of a run cannot be without its relevant items
        unseen = unseen - first
        for k in at:
            within = place <= k
            there, most_there = share * within, np.minimum(m, k)
            values = {
                "hit_rate": first * within,
                "recall": there / m,
                "precision": there / k,
                "ndcg": there / np.log2(place + 1) / ideal[most_there - 1],
                "mrr": first * within / place,
                "map": there * earlier / place / most_there,
            }
            for name in RANKING_METRICS:
                sums[f"{name}@{k}"] += float(values[name].sum())
    return sums
