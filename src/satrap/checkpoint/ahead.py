"""Makes the next item in a thread while the last one is used."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items and make the next one meanwhile; the consumer gets errors, and ends the thread."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "satrap-ahead") as pool:
        coming = pool.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, source, end)
            yield item  # type: ignore[misc]
