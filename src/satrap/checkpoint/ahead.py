"""Makes the next item in a thread while the last one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items; the next one is made meanwhile. Errors of making it reach the consumer.

    The thread ends with the iterator, whether that is used up, dropped or left by an error.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "satrap-ahead") as pool:
        coming = pool.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, source, end)
            yield item  # type: ignore[misc]
