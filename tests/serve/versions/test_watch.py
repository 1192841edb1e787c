"""What looks for versions: it survives a store that is away, and takes each version once."""

from __future__ import annotations

import pytest

from satrap.checkpoint import Series
from satrap.errors import CheckpointError
from satrap.serve.versions import watch
from satrap.serve.versions.watch import Watcher, newest
from tests.serve.followed import eventually


class Steps(Series):
    """The newest step, or an error."""

    newest: int | str = 1

    def latest(self) -> int | None:
        if isinstance(self.newest, str):
            raise CheckpointError(self.newest)
        return self.newest


class Taking(Watcher):
    """Notes what it takes; step 3 cannot be used."""

    def __init__(self, series: Series, notices: list[str]) -> None:
        super().__init__(series, 1, notices.append)
        self.taken = [1]

    @property
    def _step(self) -> int:
        return self.taken[-1]

    def _take(self, step: int) -> None:
        if step == 3:
            raise RuntimeError("by surprise")
        self.taken.append(step)


def test_a_version_that_goes_while_it_is_read_is_given_up_for_a_newer_one() -> None:
    series, tried = Steps("feed"), list[str]()

    def load(place: str) -> str:
        tried.append(place)
        if series.newest != 4:
            series.newest = int(series.newest) + 1  # as if it had been removed meanwhile
            raise CheckpointError("a file is missing")
        return place

    assert newest(series, load) == series.place(4)
    assert tried == [series.place(step) for step in (1, 2, 3, 4)]

    def damaged(place: str) -> str:
        raise CheckpointError("damaged")

    with pytest.raises(CheckpointError, match="damaged"):
        newest(series, damaged)


def test_each_version_is_taken_once_and_a_bad_one_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.001)
    series, notices = Steps("unused"), list[str]()
    with Taking(series, notices) as one:
        series.newest = 2
        eventually(lambda: one.taken == [1, 2])
        series.newest = "the store is away"
        eventually(lambda: len(notices) == 1)
        series.newest = 3
        eventually(lambda: one.statistics.refused == 1)
        series.newest = "the store is away"
        eventually(lambda: len(notices) == 3)
        one.pinned = True
        series.newest = 4
        eventually(lambda: one.statistics.latest == 4)
        assert one.taken == [1, 2]
        one.pinned = False
        eventually(lambda: one.taken == [1, 2, 4])
        assert one.statistics.updates == 2
    assert "step 3 is not served: RuntimeError: by surprise" in notices[1]
    assert "step 2 remains in service" in notices[1]
