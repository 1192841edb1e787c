"""Reads `metrics.jsonl` and turns its lines into curves over steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from satrap.metrics.own import RESERVED
from satrap.words import quality

MOST_POINTS = 600
"""Points of a curve; of a longer history every n-th line is shown."""

TRAINING = ("loss", "auc", "accuracy", "rmse", "rows", "memory_bytes")
"""Figures of a step's line that are shown over steps."""

Line = Mapping[str, Any]
Curve = list[tuple[float, float]]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file; none if there is no file. A torn line is left out."""
    found: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
    return found


def curves(lines: Sequence[Line]) -> dict[str, Curve]:
    """Return the curves of a history by name: those of `TRAINING`, the speed, and `validation/<metric>`.

    The speed is that between two lines, in samples/s; lines hold the mean since the start. Points without a
    number are left out, and so are curves without points.
    """
    steps = [line for line in lines if line.get("event") == "step"]
    found = {name: _points((line["step"], line.get(name)) for line in steps) for name in TRAINING}
    found["samples_per_second"] = _speed(steps)
    for line in (line for line in lines if line.get("event") == "validation"):
        metrics = {key: value for key, value in line.items() if key not in RESERVED}
        for metric, value in quality(metrics).items():
            found.setdefault(f"validation/{metric}", []).extend(_points([(line["step"], value)]))
    return {name: points for name, points in found.items() if points}


def _points(pairs: Iterable[tuple[Any, Any]]) -> Curve:
    points = [(float(x), float(y)) for x, y in pairs if isinstance(y, int | float)]
    every = -(-len(points) // MOST_POINTS) or 1
    return points[::-1][::every][::-1]  # the last point stays


def _speed(steps: Sequence[Line]) -> Curve:
    pairs = []
    samples = seconds = 0.0
    for line in steps:
        speed = line.get("samples_per_second")
        if not speed:
            continue
        taken = line["samples"] / speed
        # After a resume the clock may show less than before.
        if taken > seconds and line["samples"] > samples:
            pairs.append((line["step"], (line["samples"] - samples) / (taken - seconds)))
        samples, seconds = line["samples"], taken
    return _points(pairs)
