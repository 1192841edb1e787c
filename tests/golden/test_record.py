"""A golden file tells what differs: to the bit on its kind of machine, within rounding on others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.golden.record import Record


def of(machine: str, values: list[float], bytes_: bytes = b"ids") -> Record:
    record = Record(machine)
    record.array("weights", np.array(values, np.float32))
    record.numbers("test", {"auc": values[0]})
    record.exact("ids", bytes_)
    return record


@pytest.mark.parametrize(
    ("mine", "names"),
    [
        (of("a", [0.5, 0.25]), []),
        (of("b", [0.5, 0.25]), []),
        (of("a", [np.nextafter(0.5, 1), 0.25]), ["test: auc"]),
        (of("a", [0.5, np.nextafter(np.float32(0.25), 1)]), ["weights"]),
        (of("b", [0.5001, 0.2501]), []),
        (of("b", [0.52, 0.25]), ["weights", "test: auc"]),
        (of("b", [0.5, 0.25], b"other"), ["ids"]),
    ],
)
def test_differences_are_named(mine: Record, names: list[str], tmp_path: Path) -> None:
    of("a", [0.5, 0.25]).write(tmp_path / "golden.txt")
    golden = Record.read(tmp_path / "golden.txt")
    found = mine.differences(golden)
    assert len(found) == len(names)
    assert all(line.startswith(f"{name}: ") for line, name in zip(found, names, strict=True))


def test_what_is_missing_and_what_is_new_are_differences() -> None:
    golden, mine = of("a", [0.5, 0.25]), of("a", [0.5, 0.25])
    mine.exact("more", b"")
    del mine.lines["weights"]
    assert [line.split(":")[0] for line in mine.differences(golden)] == ["weights", "more"]
