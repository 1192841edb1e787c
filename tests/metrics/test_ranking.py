"""Ranking metrics against scikit-learn, torchmetrics, all orders of tied candidates, and plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score, ndcg_score
from torchmetrics import retrieval

from satrap.errors import ConfigError, DataError
from satrap.metrics import GroupRankingMetrics, RankingMetrics
from satrap.settings.ranking import RANKING_METRICS
from tests.support.examples import examples

Array = Any
AT = [1, 3, 10]
TORCH = {
    "hit_rate": retrieval.RetrievalHitRate,
    "recall": retrieval.RetrievalRecall,
    "precision": retrieval.RetrievalPrecision,
    "ndcg": retrieval.RetrievalNormalizedDCG,
    "mrr": retrieval.RetrievalMRR,
}


def candidates(n: int = 3000, groups: int = 120, *, ties: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    scores = rng.random(n).astype(np.float32)
    if ties:
        scores = np.floor(scores * ties) / np.float32(ties)
    return rng.integers(0, groups, n).astype(np.uint64), scores, rng.random(n) < 0.1


def measured(groups: Array, scores: Array, relevant: Array, at: list[int] = AT) -> dict[str, float]:
    metrics = GroupRankingMetrics(at)
    metrics.update(groups, scores, relevant)
    return metrics.compute()


def of_order(relevant: list[bool], k: int) -> dict[str, float]:
    """Metrics of one list in its order, from the definitions."""
    m, places = sum(relevant), [i for i, hit in enumerate(relevant, 1) if hit and i <= k]
    return {
        "hit_rate": float(bool(places)),
        "recall": len(places) / m,
        "precision": len(places) / k,
        "ndcg": sum(1 / math.log2(i + 1) for i in places)
        / sum(1 / math.log2(i + 1) for i in range(1, min(m, k) + 1)),
        "mrr": 1 / places[0] if places else 0.0,
        "map": sum(number / i for number, i in enumerate(places, 1)) / min(m, k),
    }


def test_metrics_are_those_of_torchmetrics() -> None:
    groups, scores, relevant = candidates()
    found = measured(groups, scores, relevant)
    given = torch.from_numpy(scores), torch.from_numpy(relevant), torch.from_numpy(groups.astype(np.int64))
    for k in AT:
        for name, metric in TORCH.items():
            expected = metric(top_k=k, empty_target_action="skip")(*given).item()
            assert found[f"{name}@{k}"] == pytest.approx(expected, abs=1e-6), (name, k)
    whole = measured(groups, scores, relevant, [3000])
    average = retrieval.RetrievalMAP(empty_target_action="skip")(*given).item()
    assert whole["map@3000"] == pytest.approx(average, abs=1e-6)


def test_tied_candidates_count_as_in_scikit_learn() -> None:
    groups, scores, relevant = candidates(ties=6)
    found = measured(groups, scores, relevant)
    each = [(relevant[groups == g], scores[groups == g]) for g in np.unique(groups[relevant])]
    for k in AT:
        assert found[f"ndcg@{k}"] == pytest.approx(np.mean([ndcg_score([y], [s], k=k) for y, s in each]))
    assert (found["queries"], found["queries_skipped"]) == (len(each), 120 - len(each))


def test_average_precision_without_ties_is_that_of_scikit_learn() -> None:
    groups, scores, relevant = candidates()
    each = [(relevant[groups == g], scores[groups == g]) for g in np.unique(groups[relevant])]
    expected = np.mean([label_ranking_average_precision_score([y], [s]) for y, s in each])
    assert measured(groups, scores, relevant, [3000])["map@3000"] == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=7), st.integers(1, 8))
@settings(max_examples=examples(150), deadline=None)
def test_ties_are_the_mean_over_all_orders(rows: list[tuple[int, bool]], k: int) -> None:
    if not any(hit for _, hit in rows):
        return
    orders = [
        of_order([hit for _, hit in order], k)
        for order in itertools.permutations(rows)
        if all(a[0] >= b[0] for a, b in itertools.pairwise(order))
    ]
    scores, relevant = (np.array(column) for column in zip(*rows, strict=True))
    found = measured(np.zeros(len(rows), np.uint64), scores.astype(np.float32), relevant, [k])
    for name in RANKING_METRICS:
        mean = np.mean([order[name] for order in orders])
        assert found[f"{name}@{k}"] == pytest.approx(mean), name


@pytest.mark.parametrize("score", [0.0, 0.7, math.nan])
def test_equal_scores_are_worth_a_random_order_and_no_number_less(score: float) -> None:
    groups, _, relevant = candidates(groups=30)
    found = measured(groups, np.full(len(groups), score, np.float32), relevant)
    rng = np.random.default_rng(1)
    random = [measured(groups, rng.random(len(groups), np.float32), relevant) for _ in range(300)]
    for name in ("recall@10", "ndcg@10", "map@3", "mrr@10", "hit_rate@3"):
        if math.isnan(score):
            assert found[name] < 0.01
        else:
            assert found[name] == pytest.approx(np.mean([one[name] for one in random]), rel=0.05), name


def ranked(
    seed: int = 0, n: int = 400, queries: int = 60, limit: int = 4_000_000
) -> tuple[RankingMetrics, list[Array]]:
    """Lists of 200 items whose scores are multiples of 1/40, so many are tied."""
    rng = np.random.default_rng(seed)
    scores = np.floor(rng.random((queries, 200)) * 40)
    q, i = rng.integers(0, queries, n), rng.integers(0, 200, n)
    own = scores[q, i][:, None]
    columns = [
        q.astype(np.uint64),
        i.astype(np.uint64),
        1 + (scores[q] > own).sum(1),
        (scores[q] == own).sum(1),
    ]
    metrics = RankingMetrics(AT, limit=limit)
    metrics.update(*columns[:3], tied=columns[3])
    return metrics, [scores, *columns]


def test_ranks_give_the_metrics_of_the_whole_lists() -> None:
    metrics, (scores, q, i, _, _) = ranked()
    relevant = np.zeros(scores.shape, np.bool_)
    relevant[q.astype(int), i.astype(int)] = True  # an item that is drawn twice is relevant once
    groups = np.repeat(np.arange(len(scores), dtype=np.uint64), 200)
    whole = measured(groups, scores.ravel().astype(np.float32), relevant.ravel())
    skipped = whole.pop("queries_skipped")
    assert metrics.compute() == pytest.approx(whole)
    assert whole["queries"] + skipped == 60


@given(st.lists(st.integers(0, 400), max_size=4), st.sampled_from([4_000_000, 100]), st.randoms())
@settings(max_examples=examples(40), deadline=None)
def test_any_division_over_workers_gives_the_same_numbers(cuts: list[int], limit: int, random: Any) -> None:
    whole, (_, *columns) = ranked(limit=limit)
    bounds = [0, *sorted(cuts), 400]
    parts = list(itertools.pairwise(bounds))
    random.shuffle(parts)
    total = RankingMetrics(AT, limit=limit)
    for start, stop in parts:
        worker, sent = RankingMetrics(AT, limit=limit), RankingMetrics(AT, limit=limit)
        q, i, ranks, tied = (column[start:stop] for column in columns)
        worker.update(q, i, ranks, tied=tied)
        sent.restore(worker.state())
        total.merge(sent)
    assert total.compute() == whole.compute()  # to the bit
    assert (whole.compute()["queries_share"] < 1) == (limit == 100)


def test_beyond_the_limit_whole_queries_are_left_out() -> None:
    groups, scores, relevant = candidates(ties=50)
    metrics = GroupRankingMetrics(AT, limit=500)
    for start in range(0, 3000, 100):
        rows = slice(start, start + 100)
        metrics.update(groups[rows], scores[rows], relevant[rows])
    found = metrics.compute()
    kept = metrics.state()["groups"]
    assert len(kept) <= 500
    assert found["queries_share"] in (0.125, 0.0625)
    chosen = np.isin(groups, kept)
    exact = measured(groups[chosen], scores[chosen], relevant[chosen])
    assert {k: v for k, v in found.items() if "@" in k} == pytest.approx(
        {k: v for k, v in exact.items() if "@" in k}
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 9), st.integers(1, 4)), max_size=12
    )
)
@settings(max_examples=examples(100), deadline=None)
def test_ranks_that_contradict_each_other_cannot_exceed_one(rows: list[tuple[int, int, int, int]]) -> None:
    metrics = RankingMetrics([1, 2, 5])
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    metrics.update(*columns[:3], tied=columns[3])
    for name, value in metrics.compute().items():
        assert "@" not in name or math.isnan(value) or -1e-12 <= value <= 1 + 1e-12, name


def test_without_queries_there_is_no_value() -> None:
    found = RankingMetrics([5]).compute()
    assert math.isnan(found["ndcg@5"])
    assert (found["queries"], found["queries_share"]) == (0, 1.0)
    assert math.isnan(GroupRankingMetrics([5]).compute()["recall@5"])


def test_reset_removes_all_queries() -> None:
    for metrics in (ranked()[0], GroupRankingMetrics(AT)):
        if isinstance(metrics, GroupRankingMetrics):
            metrics.update(*candidates())
        assert metrics.compute()["queries"] > 0
        metrics.reset()
        assert metrics.compute()["queries"] == 0


def test_the_lists_of_the_caller_stay_theirs() -> None:
    metrics, queries = RankingMetrics([5]), np.array([1], np.uint64)
    metrics.update(queries, queries, np.array([1]))
    queries[0] = 7
    assert metrics.state()["queries"].tolist() == [1]


@pytest.mark.parametrize("at", [[], [0], [5, 5], [-1, 3]])
def test_lengths_that_are_no_lengths_are_refused(at: list[int]) -> None:
    for kind in (RankingMetrics, GroupRankingMetrics):
        with pytest.raises(ConfigError, match="whole numbers >= 1"):
            kind(at)


def test_wrong_ranks_are_refused() -> None:
    metrics, one = RankingMetrics([5]), np.array([1], np.uint64)
    with pytest.raises(DataError, match="differ in number"):
        metrics.update(one, one, np.array([1, 2]))
    with pytest.raises(DataError, match="below 1"):
        metrics.update(one, one, np.array([0]))
    assert metrics.compute()["queries"] == 0
