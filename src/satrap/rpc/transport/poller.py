"""Lets a thread wait for sockets, and for other threads that want its attention."""

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
        """From now on, have `wait` return an item when READ or WRITE, or both, are possible; 0: never."""
        known = self._selector.get_map().get(file)
        if known is None and events:
            self._selector.register(file, events, item)
        elif known is not None and not events:
            self._selector.unregister(file)
        elif known is not None and events != known.events:
            self._selector.modify(file, events, item)

    def again(self, item: T) -> None:
        """Have the next `wait` return an item to read at once, whatever its socket shows."""
        self._again[item] = None

    def wait(self, seconds: float) -> list[tuple[T, int]]:
        """Return the items for which something is possible, and what; none after `seconds`."""
        found = dict.fromkeys(self._again, READ)
        self._again = {}
        for key, events in self._selector.select(0 if found else max(seconds, 0)):
            if key.fd == self._bell.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                self._rung = False  # only now: whoever rang before is served in this round
            else:
                found[key.data] = found.get(key.data, 0) | events
        return list(found.items())

    def ring(self) -> None:
        """Have `wait` return soon; any thread may call it."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(OSError):  # full: it will wake up anyway; closed: nobody waits
                self._ringer.send(b"\0")

    def close(self) -> None:
        """Close the bell; the sockets are their owners'."""
        self._selector.close()
        self._bell.close()
        self._ringer.close()
