"""Conversion of `metrics.jsonl` to curves over steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from satrap.runtime.formatting import quality
from satrap.settings.training import RESERVED

MOST_POINTS = 600
"""Most points of a curve; a longer history shows every n-th line."""

TRAINING = ("loss", "auc", "accuracy", "rmse", "rows", "memory_bytes")
"""Figures of a step's line that have a curve."""

Line = Mapping[str, Any]
Curve = list[tuple[float, float]]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file; none if the file does not exist. A torn line is skipped."""
    entries: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


def curves(lines: Sequence[Line]) -> dict[str, Curve]:
    """Return name -> curve of a history: the `TRAINING` figures, the speed, and `validation/<metric>`.

    The speed is measured between two lines, in samples/s, because lines have the mean since the start. Points
    without a number and empty curves are omitted.
    """
    steps = [line for line in lines if line.get("event") == "step"]
    by_name = {name: _points((line["step"], line.get(name)) for line in steps) for name in TRAINING}
    by_name["samples_per_second"] = _speed(steps)
    for line in (line for line in lines if line.get("event") == "validation"):
        metrics = {key: value for key, value in line.items() if key not in RESERVED}
        for metric, value in quality(metrics).items():
            by_name.setdefault(f"validation/{metric}", []).extend(_points([(line["step"], value)]))
    return {name: points for name, points in by_name.items() if points}


def _points(pairs: Iterable[tuple[Any, Any]]) -> Curve:
    points = [(float(x), float(y)) for x, y in pairs if isinstance(y, int | float)]
    every = -(-len(points) // MOST_POINTS) or 1
    return points[::-1][::every][::-1]  # keep the last point


def _speed(steps: Sequence[Line]) -> Curve:
    pairs = []
    samples = seconds = 0.0
    for line in steps:
        speed = line.get("samples_per_second")
        if not speed:
            continue
        taken = line["samples"] / speed
        # After a resume the clock may be behind.
        if taken > seconds and line["samples"] > samples:
            pairs.append((line["step"], (line["samples"] - samples) / (taken - seconds)))
        samples, seconds = line["samples"], taken
    return _points(pairs)
