"""Items made in a thread ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from satrap.checkpoint.ahead import ahead


def test_one_more_is_made_while_the_last_is_used() -> None:
    made: list[int] = []
    second = threading.Event()

    def source() -> Iterator[int]:
        for i in range(3):
            made.append(i)
            if i == 1:
                second.set()
            yield i

    items = ahead(source())
    assert next(items) == 0
    assert second.wait(10)
    assert 2 not in made  # no more than one: memory stays bounded
    assert list(items) == [1, 2]


def test_an_error_reaches_the_consumer_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    items = ahead(source())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)


def test_the_thread_ends_with_the_iterator() -> None:
    before = threading.active_count()
    items = ahead(iter(range(100)))
    next(items)
    assert threading.active_count() == before + 1
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert list(ahead(iter(()))) == []
