"""Bytes of the rows of a recipe on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from satrap.config import load
from satrap.launch.placement import Facts, plan
from satrap.runtime.cuda import CudaDevice
from satrap.tools.plan import device_rows
from tests.launch.runs import make_recipe

GIB = 1 << 30
EACH = 16 + 16 + 24
"""Bytes of a row: 4 weights, as many sums of Adagrad, and index."""


def test_rows_of_each_worker_are_counted(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path))
    facts = Facts(rows={"user": 1000, "item": 501})
    alone = device_rows.rows_on_device(recipe, plan(recipe, facts), GIB)
    assert alone == device_rows.RowsOnDevice(1501 * EACH, GIB, True)
    of_two = plan(recipe, replace(facts, workers=2))
    of_two = replace(of_two, placements={"user": "row_wise", "item": "replicated"})
    assert device_rows.rows_on_device(recipe, of_two, GIB) == replace(alone, bytes=1001 * EACH)
    least = device_rows.rows_on_device(recipe, plan(recipe, Facts(rows={"user": 1000})), GIB)
    assert least is not None
    assert not least.complete
    assert "at least" in least.report()


def test_the_device_of_this_machine_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(make_recipe(tmp_path))
    placed = plan(recipe, Facts(rows={"user": 10, "item": 5}))
    monkeypatch.setattr(device_rows, "cuda_device", lambda: CudaDevice("Some GPU", 8 * GIB, 6 * GIB, True))
    here = device_rows.rows_on_device(recipe, placed, None)
    assert here is not None
    assert (here.memory, here.fits) == (6 * GIB, True)
    monkeypatch.setattr(device_rows, "cuda_device", lambda: None)
    assert device_rows.rows_on_device(recipe, placed, None) is None


@pytest.mark.parametrize(("size", "fits"), [(GIB, True), (GIB + 1, False)])
def test_half_of_the_memory_is_for_rows(size: int, fits: bool) -> None:
    found = device_rows.RowsOnDevice(size, 2 * GIB, True)
    assert (found.fits, found.to_dict()["fits"]) == (fits, fits)
    assert ("they fit" in found.report()) == fits
