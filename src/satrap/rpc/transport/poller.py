"""Lets a thread wait for sockets, and for other threads that wake it."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import HasFileno

T = TypeVar("T", bound=Hashable)
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Poller(Generic[T]):
    """Waits until something can be read or written, or until `ring` is called.

    One thread calls `watch`, `again`, `wait` and `close`; any thread may call `ring`.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._again: dict[T, None] = {}
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._selector.register(self._bell, READ)
        self._rung = False

    def watch(self, file: HasFileno, events: int, item: T) -> None:
        """Let `wait` return an item whenever READ or WRITE, or both, are possible; 0: never."""
        registered = self._selector.get_map().get(file)
        if registered is None and events:
            self._selector.register(file, events, item)
        elif registered is not None and not events:
            self._selector.unregister(file)
        elif registered is not None and events != registered.events:
            self._selector.modify(file, events, item)

    def again(self, item: T) -> None:
        """Let the next `wait` return an item to read at once, even if its socket is not readable."""
        self._again[item] = None

    def wait(self, seconds: float) -> list[tuple[T, int]]:
        """Return the items for which something is possible, and the events; none after `seconds`."""
        ready = dict.fromkeys(self._again, READ)
        self._again = {}
        for key, events in self._selector.select(0 if ready else max(seconds, 0)):
            if key.fd == self._bell.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                # Cleared only after the bell is emptied: a `ring` from here on writes again and is not lost,
                # and one from before is served in this round.
                self._rung = False
            else:
                ready[key.data] = ready.get(key.data, 0) | events
        return list(ready.items())

    def ring(self) -> None:
        """Let `wait` return soon; any thread may call it."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(OSError):  # full: it will wake up anyway; closed: no thread waits
                self._ringer.send(b"\0")

    def close(self) -> None:
        """Close the bell; the sockets belong to their owners."""
        self._selector.close()
        self._bell.close()
        self._ringer.close()
