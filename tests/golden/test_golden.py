"""What small seeded runs leave is what they left when the files beside this one were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.record import Record
from tests.golden.runs import NAMES, run

HERE = Path(__file__).parent

pytestmark = pytest.mark.golden


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_as_its_golden_file_says(name: str, tmp_path: Path) -> None:
    golden = Record.read(Path(os.environ.get("GOLDEN", HERE)) / f"{name}.txt")
    mine = run(name, tmp_path)
    assert not mine.differences(golden), f"golden: {golden.machine}; here: {mine.machine}"
