"""PyTorch spins shortly and leaves a core free, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from satrap.runtime.threads import SPIN_COUNT, default_threads

CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def after(program: str, **environment: str) -> str:
    """What a new process prints; nothing is chosen in its environment but this."""
    clean = {name: value for name, value in os.environ.items() if name not in CHOICES}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    ).stdout.strip()


def test_satrap_shortens_the_spinning_before_pytorch_is_loaded() -> None:
    assert after("import satrap, os; print(os.environ['GOMP_SPINCOUNT'])") == SPIN_COUNT


@pytest.mark.parametrize(
    ("program", "environment", "expected"),
    [
        ("import satrap", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("import satrap", {"OMP_WAIT_POLICY": "passive"}, "None"),
        pytest.param("import torch, satrap", {}, "None", marks=pytest.mark.cluster),
    ],
)
def test_a_choice_is_left_alone(program: str, environment: dict[str, str], expected: str) -> None:
    assert after(f"{program}, os; print(os.environ.get('GOMP_SPINCOUNT'))", **environment) == expected


@pytest.mark.parametrize(
    ("cores", "present", "expected"), [(1, 1, 1), (2, 2, 1), (8, 8, 7), (8, 3, 3), (None, 4, 1)]
)
def test_one_core_stays_free(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, present: int, expected: int
) -> None:
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_threads(present) == expected


@pytest.mark.parametrize("name", CHOICES)
def test_threads_that_give_their_core_away_may_use_all(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "passive")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert default_threads(8) == 8
