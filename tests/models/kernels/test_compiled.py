"""What the compiler makes of the kernels: no spilled registers, tensor cores, wide loads and stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def facts() -> list[dict[str, Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.models.kernels.compiled"]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def test_nothing_is_spilled_and_nothing_is_atomic(facts: list[dict[str, Any]]) -> None:
    assert {fact["architecture"] for fact in facts} == {80, 90, 100}
    spilled = [fact for fact in facts if fact["stack"] > 8]  # two registers, of one case with Triton 3.9
    assert [fact for fact in facts if fact["atomics"] or fact["doubles"]] + spilled == []
    assert max(fact["shared"] for fact in facts) <= 99 * 1024  # of the smallest GPUs


def test_products_use_tensor_cores_unless_float32_must_be_exact(facts: list[dict[str, Any]]) -> None:
    assert [fact for fact in facts if (fact["matrix"] > 0) == fact["exact"]] == []
    assert {fact["exact"] for fact in facts} == {False, True}


def test_vectors_are_loaded_and_gradients_stored_16_bytes_at_a_time(facts: list[dict[str, Any]]) -> None:
    aligned = [fact for fact in facts if fact["dim"] % 8 == 0 and not fact["exact"]]
    assert [fact for fact in aligned if not fact["wide_loads"]] == []
    assert [fact for fact in aligned if (fact["wide_stores"] > 0) != (fact["kernel"] == "gradients")] == []
