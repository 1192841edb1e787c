"""Jobs beside training: one at a time, and whatever one raises is told."""

from __future__ import annotations

import threading

import pytest

from satrap.checkpoint import Background
from satrap.errors import CheckpointError, StoreError


def test_one_job_at_a_time() -> None:
    writer, go_on, done = Background(), threading.Event(), list[int]()

    def first() -> None:
        assert go_on.wait(20)
        done.append(1)

    writer.start(first)
    assert writer.busy
    assert writer.failure() is None
    threading.Timer(0.05, go_on.set).start()
    writer.start(lambda: done.append(2))
    writer.wait()
    assert not writer.busy
    assert done == [1, 2]
    assert writer.failure() is None


@pytest.mark.parametrize(
    "raised", [MemoryError(), OSError(5, "Input/output error"), KeyError("x"), SystemExit(3), GeneratorExit()]
)
def test_whatever_a_job_raises_is_told_once(raised: BaseException) -> None:
    writer = Background()

    def job() -> None:
        raise raised

    writer.start(job)
    writer.wait()
    told = writer.failure()
    assert isinstance(told, CheckpointError)
    assert type(raised).__name__ in told.what
    assert str(raised) in told.what
    assert told.__cause__ is raised
    assert writer.failure() is None


def test_an_error_of_ours_stays_what_it_is() -> None:
    writer, ours = Background(), StoreError("the store was closed")

    def job() -> None:
        raise ours

    writer.start(job)
    writer.wait()
    assert writer.failure() is ours


def test_without_a_thread_the_job_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    writer, done = Background(), list[int]()
    for number in (1, 2):
        writer.start(lambda number=number: done.append(number))
        assert not writer.busy
    writer.wait()
    assert done == [1, 2]
