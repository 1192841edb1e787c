import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, r2_score, root_mean_squared_error

from satrap.runtime.formatting import (
    baseline_line,
    counted,
    decimals,
    duration,
    html_table,
    metric_name,
    metrics_line,
    size,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (812 << 20, "812 MiB"),
        (5 << 40, "5.0 TiB"),
        (5 << 30, "5.0 GiB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (59.9, "1:00"), (3723, "1:02:03")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_metrics() -> None:
    assert decimals(0.77315) == "0.7732"
    assert decimals(math.nan) == "-"
    assert metric_name("income/auc") == "income AUC"
    assert metric_name("income/ndcg@10") == "income NDCG@10"
    assert metrics_line({"hit_rate@5": 0.5, "queries": 3, "queries_share": 1.0}) == "hit rate@5 0.5000"
    assert metrics_line({"auc": 0.5, "logloss": 0.69314}) == "AUC 0.5000, logloss 0.6931"
    assert metrics_line({"ndcg_at_10": 0.5, "samples": 3, "own_share": 1.0}) == "ndcg_at_10 0.5000"


def test_the_baseline_is_that_of_scikit_learns_dummies() -> None:
    random = np.random.default_rng(0)
    clicked, paid = random.random(500) < 0.3, random.normal(5, 2, 500)
    guess = random.random(500)
    share, mean = np.full(500, clicked.mean()), np.full(500, paid.mean())
    entropy = log_loss(clicked, share)
    metrics = {
        "a/auc": 0.8,
        "a/logloss": log_loss(clicked, guess),
        "a/ne": log_loss(clicked, guess) / entropy,
    }
    metrics |= {
        "p/rmse": root_mean_squared_error(paid, guess),
        "p/r2": r2_score(paid, guess),
        "c/accuracy": 0.5,
    }
    rmse = root_mean_squared_error(paid, mean)
    assert baseline_line(metrics) == f"a AUC 0.5000, a logloss {entropy:.4f}, p RMSE {rmse:.4f}"
    assert baseline_line({"auc": math.nan, "ne": math.nan, "logloss": 0.3, "r2": math.nan, "rmse": 1.0}) == ""


def test_nouns_after_a_number() -> None:
    assert [counted(n, "row") for n in (0, 1, 1000)] == ["0 rows", "1 row", "1,000 rows"]


def test_a_table_of_a_notebook_is_escaped_and_short() -> None:
    assert html_table("a < b", [("<b>", 1)]) == (
        "<table><caption>a &lt; b</caption><tr><td>&lt;b&gt;</td><td>1</td></tr></table>"
    )
    long = html_table("many", [("x" * 1000,)] * 1000)
    assert long.count("<tr>") == 51
    assert "and 950 more rows" in long
    assert len(long) < 51 * 130
