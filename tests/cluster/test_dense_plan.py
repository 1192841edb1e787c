"""Processes that train over a mesh have the memory peaks that the plan predicts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from satrap.dense import Mesh
from tests.cluster.dense_memory import CASES, PROGRAM, SETTINGS, predicted, pretended_alone
from tests.dense.processes import answers

pytestmark = pytest.mark.cluster


def tolerance(mesh: dict[str, Any], options: dict[str, Any]) -> float:
    """A stage with divided layers may keep one more tensor of a part; so may a process with some experts."""
    return 0.07 if {"tensor", "pipeline"} <= mesh.keys() or "model" in options else 0.05


@pytest.mark.parametrize("case", range(len(CASES)), ids=[json.dumps(case) for case in CASES])
def test_peak_of_a_process_without_the_others(case: int) -> None:
    mesh, options, stage = CASES[case]
    expected = predicted(SETTINGS.index((mesh, options)))[stage]
    assert expected == pytest.approx(pretended_alone(case), rel=tolerance(mesh, options))


REAL = (0, 1, 4, 6, 12, 14, 15, 19, 22)


@pytest.mark.parametrize("setting", REAL, ids=[json.dumps(SETTINGS[n]) for n in REAL])
def test_peak_of_real_processes(setting: int) -> None:
    mesh, options = SETTINGS[setting]
    size = Mesh(**mesh).size
    found = answers(PROGRAM, size, json.dumps([(mesh, options, 0)]))
    expected = predicted(setting) * (size // len(predicted(setting)))
    assert found == pytest.approx(expected, rel=tolerance(mesh, options))
