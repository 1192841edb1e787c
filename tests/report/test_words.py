import math

import pytest

from satrap.report.words import decimals, duration, metric_name, metrics_line, progress_line, size
from satrap.train.observer import Progress


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


def test_progress_line_says_everything() -> None:
    progress = Progress(
        step=1200,
        epoch=1,
        samples=300,
        total_samples=1000,
        samples_per_second=143000.4,
        loss=0.5321,
        auc=0.7512,
        rows=63211,
        staleness=4,
        memory_bytes=812 << 20,
        refused=3,
        eta_seconds=42,
    )
    assert progress_line(progress) == (
        "epoch 2 step 1,200  30% | 143,000 samples/s | loss 0.5321 | AUC 0.7512 | 63,211 rows | staleness 4"
        " | 812 MiB | 3 steps refused | 0:42 left"
    )
    assert progress_line(Progress(samples=1234)).startswith("epoch 1 step 0 1,234 samples | ")


def test_progress_line_with_shards_tells_of_the_traffic() -> None:
    progress = Progress(
        push_seconds=0.0031,
        sent_bytes_per_sample=1000.4,
        received_bytes_per_sample=300,
        distinct_ratio=0.234,
        others_missed=2.34,
        shard_rows=(5, 6),
        shard_busy=(0.5, 0.12),
        stage_seconds={"read": 1.0, "lookup": 1.0, "dense": 2.0},
    )
    assert " | staleness 0 (others 2.3) | " in progress_line(progress)
    assert " | wait 25% | push 3.1 ms | 1,300 B/sample | 23% distinct | shards 50% 12% busy" in progress_line(
        progress
    )


def test_progress_line_fits_the_terminal() -> None:
    progress = Progress(
        step=123_456,
        epoch=11,
        samples=300_000_000,
        total_samples=1_000_000_000,
        samples_per_second=1_430_000.4,
        loss=0.5321,
        auc=0.7512,
        rows=632_110_000,
        staleness=4,
        memory_bytes=812 << 30,
        refused=3,
        eta_seconds=42_000,
        distinct_ratio=0.5,
        others_missed=2.0,
        shard_rows=(1,) * 8,
        shard_busy=(0.5,) * 8,
    )
    whole = progress_line(progress)
    assert len(whole) > 160
    for width in (160, 120, 100, 80, 60):
        line = progress_line(progress, width)
        assert len(line) <= width
        assert line.startswith("epoch 12 step 123,456  30% | ")
        assert "loss 0.5321 | AUC 0.7512" in line
        assert set(line.split(" | ")) <= set(whole.split(" | "))
    assert progress_line(progress, 80).endswith("30% | loss 0.5321 | AUC 0.7512 | 3 steps refused")
    assert progress_line(progress, len(whole)) == whole
