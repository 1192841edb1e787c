"""Numbers and metrics as short text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from html import escape
from typing import Any

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
    "hit_rate": "hit rate",
    "recall": "recall",
    "precision": "precision",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "map": "MAP",
}
"""Metric -> its display name; of a ranking metric without the number of places."""

COUNTS = (
    *("samples", "positives", "auc_error_bound", "gauc_groups", "gauc_skipped", "gauc_share", "own_share"),
    *("queries", "queries_share", "queries_skipped"),
)
"""Figures of an evaluation that are not metrics."""


def counted(count: int, noun: str) -> str:
    """Return `1 row`, `1,000 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


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
    """Return `AUC` for "auc", `income AUC` for "income/auc", `NDCG@10` for "ndcg@10"."""
    label, _, metric = key.rpartition("/")
    name, *places = metric.partition("@")
    return f"{label} {METRIC_NAMES.get(name, name)}{''.join(places)}".strip()


def quality(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a model's quality, including the user's, without counts and bounds."""
    return {key: value for key, value in metrics.items() if key.rpartition("/")[2] not in COUNTS}


def described(thing: Any) -> str:
    """Return a dataclass as a constructor call without default values; arrays as dtype and shape."""
    parts = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if hasattr(value, "shape"):
            parts.append(f"{field.name}={str(value.dtype).removeprefix('torch.')}{list(value.shape)}")
        elif field.repr and value != default:
            parts.append(f"{field.name}={value!r}")
    return f"{type(thing).__name__}({', '.join(parts)})"


HTML_ROWS, HTML_TEXT = 50, 100
"""Most rows of a table in a notebook, and most characters of a text in it."""


def html_table(title: str, rows: Sequence[Sequence[object]]) -> str:
    """Return a table for a notebook, with escaped texts; long texts and many rows are cut."""

    def cell(value: object) -> str:
        text = str(value)
        return f"<td>{escape(text if len(text) <= HTML_TEXT else text[: HTML_TEXT - 1] + '…')}</td>"

    shown = ["".join(map(cell, row)) for row in rows[:HTML_ROWS]]
    if len(rows) > HTML_ROWS:
        shown.append(f"<td>and {counted(len(rows) - HTML_ROWS, 'more row')}</td>")
    body = "".join(f"<tr>{cells}</tr>" for cells in shown)
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def metric_rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return (display name, value with four decimals) of the quality metrics."""
    return [(metric_name(key), decimals(value)) for key, value in quality(metrics).items()]


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Return `AUC 0.7731, logloss 0.5301, ...`: the quality metrics."""
    return ", ".join(" ".join(row) for row in metric_rows(metrics))


def baseline_line(metrics: Mapping[str, float]) -> str:
    """Return, as `metrics_line` does, the metrics of a model that predicts the mean for every row.

    They follow from another model's metrics: NE is its logloss divided by the baseline's, and R2 compares its
    squared error with the baseline's. Empty if neither is known.
    """
    baseline: dict[str, float] = {}
    for key, value in metrics.items():
        label, metric = key.rpartition("/")[0], key.rpartition("/")[2]
        prefix = f"{label}/" if label else ""
        if metric == "ne" and value > 0:
            baseline |= {f"{prefix}auc": 0.5, f"{prefix}logloss": metrics[f"{prefix}logloss"] / value}
        elif metric == "r2" and value < 1:
            baseline[f"{prefix}rmse"] = metrics[f"{prefix}rmse"] / math.sqrt(1 - value)
    return metrics_line(baseline)
