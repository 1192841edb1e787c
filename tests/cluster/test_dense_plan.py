"""Processes that train over a mesh have the memory peaks that the plan predicts."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from typing import Any

import pytest

from satrap.dense import Mesh
from tests.cluster.dense_memory import CASES, DIVIDED, PROGRAM, SETTINGS, predicted, pretended_alone
from tests.dense.processes import answers

pytestmark = pytest.mark.cluster


def tolerance(mesh: dict[str, Any], options: dict[str, Any]) -> float:
    """A stage with divided layers may keep one more tensor of a part; so may a process with some experts."""
    return 0.07 if {"tensor", "pipeline"} <= mesh.keys() or "model" in options else 0.05


DIVIDED_CASES = range(len(CASES) - DIVIDED, len(CASES))


def parameters(numbers: Iterable[int], names: Sequence[Any], slow: Container[int]) -> list[Any]:
    return [
        pytest.param(number, id=json.dumps(names[number]), marks=pytest.mark.slow if number in slow else ())
        for number in numbers
    ]


@pytest.mark.parametrize(
    "case", parameters(range(len(CASES)), CASES, set(DIVIDED_CASES) - set(DIVIDED_CASES[::4]))
)
def test_peak_of_a_process_without_the_others(case: int) -> None:
    mesh, options, stage = CASES[case]
    expected = predicted(SETTINGS.index((mesh, options)))[stage]
    assert expected == pytest.approx(pretended_alone(case), rel=tolerance(mesh, options))


REAL = (0, 1, 4, 6, 12, 14, 15, 19, 22)


@pytest.mark.parametrize("setting", parameters(REAL, SETTINGS, (0, 1, 6, 12, 22)))
def test_peak_of_real_processes(setting: int) -> None:
    mesh, options = SETTINGS[setting]
    size = Mesh(**mesh).size
    found = answers(PROGRAM, size, json.dumps([(mesh, options, 0)]))
    expected = predicted(setting) * (size // len(predicted(setting)))
    assert found == pytest.approx(expected, rel=tolerance(mesh, options))
