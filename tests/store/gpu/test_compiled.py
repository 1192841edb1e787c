"""What the compiler makes of each kernel, on the GPUs of three generations; needs none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.triton, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def printed() -> list[Any]:
    """The output of `compiled.py`, in a process where kernels are not interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        str(Path(__file__).with_name("compiled.py")),
    ]  # not forked: see `tests.support.forked`
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_is_compiled_for_every_gpu(printed):
    built = {}
    for fact in printed[1:]:
        built.setdefault(fact["kernel"], set()).add(fact["architecture"])
    assert sorted(built) == printed[0], "add a line to CASES in tests/store/gpu/compiled.py"
    assert {k: v for k, v in built.items() if v != {80, 90, 100}} == {}


def test_no_kernel_needs_atomics_or_local_memory_or_fuses_operations(printed):
    for fact in printed[1:]:
        assert (fact["local"], fact["atomic"], fact["fused"]) == ([], [], []), fact["name"]
        # the assembler may set a few registers aside, to run more programs at once; a tile needs far more
        assert fact["stack"] <= 32, fact["name"]


def test_numbers_are_double_only_where_the_cpus_are(printed):
    for fact in printed[1:]:
        assert bool(fact["double"]) == fact["in_double"], fact["name"]


def test_rows_are_read_and_written_sixteen_bytes_at_once(printed):
    seen = set()
    for fact in printed[1:]:
        if fact["kernel"] in ("gather", "gather_positions", "pool", "step_short") and fact["float32"]:
            wide = Counter(access for access in fact["memory"] if ".v4" in access)
            narrow = Counter(
                access for access in fact["memory"] if access.startswith("st") and ".v4" not in access
            )
            assert wide["ld.global.v4.b32"] >= 1 + fact["vectors"], fact["name"]
            assert wide["st.global.v4.b32"] >= 1 + fact["vectors"], fact["name"]
            assert sum(narrow.values()) <= (fact["kernel"] == "step_short"), fact["name"]  # the scalar
            seen.add((fact["kernel"], fact["dim"]))
    assert {dim for kernel, dim in seen if kernel == "step_short"} >= {16, 64, 128}
    assert {dim for kernel, dim in seen if kernel == "gather"} >= {16, 64, 128}


def test_a_step_loads_everything_before_it_stores_anything(printed):
    """Warps of a program may hold copies of a number: one must not store before another has loaded."""
    steps = [fact for fact in printed[1:] if fact["kernel"].startswith("step_")]
    assert steps
    for fact in steps:
        kinds = "".join({"l": "l", "s": "s", "b": "b"}[access[0]] for access in fact["memory"])
        loads, stores = kinds.rindex("l"), kinds.index("s")
        assert loads < stores, fact["name"]
        assert "b" in kinds[loads:stores], fact["name"]
