"""Prefetching of an iterator in a background thread."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from satrap.runtime.arguments import checked

T = TypeVar("T")
_POLL_SECONDS = 0.1
_EXIT_SECONDS = 10.0
"""Longest wait for reader threads at process exit."""

_running: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()


@atexit.register
def _end_all() -> None:
    """Stop all threads before the interpreter shuts down.

    At shutdown a thread in C++ code (pyarrow) would be killed, and the process would abort or hang.
    """
    limit = time.monotonic() + _EXIT_SECONDS
    threads = list(_running.items())
    for _, stop in threads:
        stop.set()
    for thread, _ in threads:
        thread.join(max(0.0, limit - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _EndOfItems:
    """End of the items: `StopIteration`, or the error that ended the iteration."""

    error: BaseException


class Prefetcher(Generic[T]):
    """An iterator over items that one background thread produces ahead; see `prefetch`."""

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._queue: queue.Queue[T | _EndOfItems] = queue.Queue(maxsize=max(1, depth))
        self._stop = threading.Event()
        self._done = False
        # The thread must not reference this object, so that an abandoned object is collected and stops it.
        self._thread = threading.Thread(
            target=_produce, args=(items, self._queue, self._stop), name="satrap-prefetch", daemon=True
        )
        _running[self._thread] = self._stop
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return cast(T, self.take(None))

    @property
    def ready(self) -> int:
        """Number of items ready."""
        return self._queue.qsize()

    def take(self, seconds: float | None) -> T | None:
        """Return the next item, or None after `seconds` without one; raise `StopIteration` after the last."""
        if self._done:
            raise StopIteration
        try:
            item = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(item, _EndOfItems):
            self.close()
            raise item.error
        return item

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """Stop the thread, let it close the source iterator, and wait for it to end. Idempotent."""
        self._done = True
        self._stop.set()
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(_POLL_SECONDS / 10)


def _produce(items: Iterable[T], out: queue.Queue[T | _EndOfItems], stop: threading.Event) -> None:
    end: BaseException = StopIteration()
    iterator = iter(items)
    try:
        for item in iterator:
            if not _put(out, item, stop):
                break
    except BaseException as raised:  # noqa: BLE001 - every error belongs to the consumer
        end = raised
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
    _put(out, _EndOfItems(end), stop)


def _put(out: queue.Queue[T | _EndOfItems], item: T | _EndOfItems, stop: threading.Event) -> bool:
    while not stop.is_set():
        with suppress(queue.Full):
            out.put(item, timeout=_POLL_SECONDS)
            return True
    return False


@checked()
def prefetch(items: Iterable[T], depth: int = 2) -> Prefetcher[T]:
    """Return an iterator over `items` that one background thread runs up to `depth` items ahead.

    `next` re-raises an exception of `items` after the items before it. `close()` (or
    leaving a `with` block) ends the thread and closes the source iterator.

    Args:
        items: any iterable; only the thread uses it.
        depth: maximum number of items ready, at least 1.
    """
    return Prefetcher(items, depth)
