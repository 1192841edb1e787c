"""A run that was killed at a step, and the history it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from tests.launch.runs import RECIPE, lines_of, make_recipe
from tests.support.interruptions import KillAt, KilledError

STEPPED = RECIPE + "checkpoint: {every_steps: 7}\n"


def killed(folder: Path, *overrides: str, at: int = 25) -> Path:
    path = make_recipe(folder, STEPPED)
    with pytest.raises(KilledError):
        launch.train(load(path, overrides), str(folder / "run"), observers=[KillAt(at)])
    return path


def history(folder: Path) -> list[dict[str, object]]:
    timed = ("seconds", "per_second", "eta", "rows", "memory", "waiting")
    return [
        {k: v for k, v in line.items() if not any(word in k for word in timed)}
        for line in lines_of(folder / "metrics.jsonl")
    ]
