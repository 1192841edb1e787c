"""What a thread waits for: sockets, and other threads that want its attention."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T", bound=Hashable)
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class HasFile(Protocol):
    """Something with a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Poller(Generic[T]):
    """Waits until something can be read or written, or until `ring` is called.

    One thread calls `watch`, `again`, `wait` and `close`; any thread may call `ring`.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, tuple[int, T]] = {}
        self._again: dict[T, None] = {}
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._selector.register(self._bell, READ)
        self._rung = False

    def watch(self, file: HasFile, events: int, item: T) -> None:
        """From now on, have `wait` return an item when READ or WRITE, or both, are possible; 0: never."""
        number = file.fileno()
        before, _ = self._watched.get(number, (0, item))
        if events == before:
            return
        if not events:
            del self._watched[number]
            self._selector.unregister(number)
            return
        (self._selector.modify if before else self._selector.register)(number, events)
        self._watched[number] = events, item

    def again(self, item: T) -> None:
        """Have the next `wait` return an item to read at once: there is more, where no socket shows it."""
        self._again[item] = None

    def wait(self, seconds: float) -> list[tuple[T, int]]:
        """Return each item for which something is possible, and what; none after so many seconds."""
        found = dict.fromkeys(self._again, READ)
        self._again = {}
        for key, events in self._selector.select(0 if found else max(seconds, 0)):
            if key.fd == self._bell.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                self._rung = False  # after it is silent: whoever rang before is looked after in this round
            elif key.fd in self._watched:
                item = self._watched[key.fd][1]
                found[item] = found.get(item, 0) | events
        return list(found.items())

    def ring(self) -> None:
        """Have `wait` return soon; any thread may call it."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(OSError):  # full: it will wake up; closed: nobody waits any more
                self._ringer.send(b"\0")

    def close(self) -> None:
        """Close the bell; the sockets are their owners'."""
        self._selector.close()
        self._bell.close()
        self._ringer.close()
