import math

import pytest

from satrap.words import decimals, duration, metric_name, metrics_line, size


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
    assert metrics_line({"auc": 0.5, "logloss": 0.69314}) == "AUC 0.5000, logloss 0.6931"
    assert metrics_line({"ndcg_at_10": 0.5, "samples": 3, "own_share": 1.0}) == "ndcg_at_10 0.5000"
