"""What a run that goes on does when its data is not what it was."""

from __future__ import annotations

from typing import Any

import pytest

from satrap.errors import CheckpointError, DataError
from satrap.train.state.same_data import check_same, fingerprint
from tests.train.plain import Batches, make_batches

FILE = {"name": "rows.csv", "bytes": 70, "digest": "a", "version": "1", "whole": True}


def snapshot(*done: int, data: Any = (FILE,)) -> dict[str, Any]:
    """Return the settings of a snapshot of workers that have trained so many batches of the pass."""
    run, *peers = [{"streams": [{"done": count}]} for count in done]
    return {"run": run, "peers": peers, "data": data}


def said(settings: dict[str, Any], now: Any) -> list[str]:
    lines: list[str] = []
    check_same(settings, now, "runs/x/checkpoints/step-00000007", lines.append)
    assert all(len(line.splitlines()) <= 4 for line in lines)
    return lines


@pytest.mark.parametrize("done", [(3,), (0, 3)])
def test_changed_data_is_refused_amid_a_pass(done: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="80 bytes now, 70 before") as caught:
        said(snapshot(*done), [FILE | {"bytes": 80}])
    assert caught.value.where == "rows.csv"
    assert len(str(caught.value).splitlines()) == 4


def test_changed_data_is_a_warning_between_two_passes() -> None:
    [line] = said(snapshot(0, 0), [FILE | {"bytes": 80}])
    assert "80 bytes now, 70 before" in line
    assert "where: rows.csv" in line


def test_what_could_not_be_compared_is_a_warning() -> None:
    part = FILE | {"whole": False}
    other = part | {"version": "2"}
    assert said(snapshot(3, data=[part] * 3), [part] * 3) == []
    [line] = said(snapshot(3, data=[part] * 3), [part, other, other])
    assert "where: rows.csv and 1 more" in line


def test_data_that_cannot_say_and_older_snapshots_are_not_compared() -> None:
    assert fingerprint(Batches(make_batches(1))) is None
    assert said(snapshot(3), None) == []
    older = snapshot(3)
    del older["data"]
    for settings in (older, snapshot(3, data=None)):
        assert said(settings, [FILE]) == []


@pytest.mark.parametrize("data", [7, ["rows.csv"], [{"digest": 1}], [FILE | {"other": 1}]])
def test_impossible_settings_are_the_snapshots_fault(data: Any) -> None:
    with pytest.raises(CheckpointError, match="the settings of the checkpoint cannot be used"):
        said(snapshot(3, data=data), [FILE])
