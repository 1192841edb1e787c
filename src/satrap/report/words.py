"""Numbers and progress as short text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from satrap.train.observer import Progress

METRIC_NAMES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "logloss": "logloss",
    "loss": "loss",
    "ne": "NE",
    "calibration": "calibration",
    "gauc": "GAUC",
}
"""Metric -> its name in texts."""

COUNTS = ("samples", "positives", "auc_error_bound", "gauc_groups", "gauc_skipped", "gauc_share", "own_share")
"""Figures that evaluations have beside metrics."""


def size(count: float) -> str:
    """Return bytes as `812 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Return seconds as `0:07` or `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def decimals(value: float) -> str:
    """Return a metric with four decimals, `-` for NaN."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def metric_name(key: str) -> str:
    """Return `AUC` for "auc", `income AUC` for "income/auc"."""
    label, _, metric = key.rpartition("/")
    return f"{label} {METRIC_NAMES.get(metric, metric)}".strip()


def quality(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that say how good a model is, also the user's, without counts and bounds."""
    return {key: value for key, value in metrics.items() if key.rpartition("/")[2] not in COUNTS}


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Return `AUC 0.7731, logloss 0.5301, ...`: the quality metrics."""
    return ", ".join(f"{metric_name(key)} {decimals(value)}" for key, value in quality(metrics).items())


def window(progress: Progress) -> dict[str, float]:
    """Return the metrics of the last training samples, without those that are NaN."""
    values = {name: getattr(progress, name) for name in ("auc", "accuracy", "rmse")}
    return {name: value for name, value in values.items() if not math.isnan(value)}


Part = tuple[int, str]
"""A part of the progress line; parts with higher numbers are left out first when there is no room."""


def _traffic(progress: Progress) -> list[Part]:
    """Return what passes between the worker and the shards, in a few words."""
    stages = progress.stage_seconds
    waited = stages.get("lookup", 0.0) / max(sum(stages.values()), 1e-9)
    sent, received = progress.sent_bytes_per_sample, progress.received_bytes_per_sample
    return [
        (6, f"wait {waited:.0%}"),
        (9, f"push {1000 * progress.push_seconds:.1f} ms"),
        (10, f"{sent + received:,.0f} B/sample"),
        (11, f"{progress.distinct_ratio:.0%} distinct"),
        (8, f"shards {' '.join(f'{busy:.0%}' for busy in progress.shard_busy)} busy"),
    ]


def progress_line(progress: Progress, width: int | None = None) -> str:
    """Return one line: place, speed, loss, metrics so far, rows, staleness, memory, traffic, time left.

    With a width in characters, what matters least is left out, so that the line fits.
    """
    total = progress.total_samples
    done = f" {min(progress.samples / total, 1):4.0%}" if total else f" {progress.samples:,} samples"
    parts = [
        (0, f"epoch {progress.epoch + 1} step {progress.step:,}{done}"),
        (3, f"{progress.samples_per_second:,.0f} samples/s"),
        (0, f"loss {decimals(progress.loss)}"),
        *((0, f"{METRIC_NAMES[name]} {decimals(value)}") for name, value in window(progress).items()),
        (4, f"{progress.rows:,} rows"),
        (
            7,
            f"staleness {progress.staleness}"
            + (f" (others {progress.others_missed:.1f})" if progress.others_missed else ""),
        ),
        (4, size(progress.memory_bytes)),
    ]
    if progress.shard_rows:
        parts += _traffic(progress)
    if progress.refused:
        parts.append((1, f"{progress.refused:,} steps refused"))
    if progress.eta_seconds is not None:
        parts.append((2, f"{duration(progress.eta_seconds)} left"))
    while width is not None and len(_joined(parts)) > width and max(parts)[0]:
        parts.remove(max(parts))
    return _joined(parts)


def _joined(parts: list[Part]) -> str:
    return " | ".join(text for _, text in parts)
