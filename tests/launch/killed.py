"""A run that was killed at a step, and the history it wrote."""

from __future__ import annotations

import shutil
from functools import cache
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


def restored(folder: Path, at: int | None = 25) -> Path:
    """Return the recipe of a run that was killed at a step or has ended (None), trained once for all tests.

    It is in a folder beside `folder`, which each call makes what it was after the training.
    """
    place, kept, _ = _trained(folder.parent, at)
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    return place / "clicks.yaml"


def undisturbed(folder: Path) -> launch.RunOutcome:
    """Return what the run of `restored` that has ended achieved; its folder is made what it was."""
    restored(folder, None)
    outcome = _trained(folder.parent, None)[2]
    assert outcome is not None
    return outcome


@cache
def _trained(parent: Path, at: int | None) -> tuple[Path, Path, launch.RunOutcome | None]:
    place, kept = (parent / f"{name}-{at}" for name in ("run", "kept"))
    outcome = None
    if at is None:
        outcome = launch.train(load(make_recipe(place, STEPPED)), str(place / "run"))
    else:
        killed(place, at=at)
    shutil.copytree(place, kept)
    return place, kept, outcome


def history(folder: Path) -> list[dict[str, object]]:
    timed = ("seconds", "per_second", "eta", "rows", "memory", "waiting")
    return [
        {k: v for k, v in line.items() if not any(word in k for word in timed)}
        for line in lines_of(folder / "metrics.jsonl")
    ]
