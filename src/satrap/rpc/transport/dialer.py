"""A client's end of a connection, which is re-established whenever it breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from satrap.rpc.transport.address import split_address
from satrap.rpc.transport.connection import Connection, LostError, ending
from satrap.rpc.transport.key import Key

_SECONDS = 10.0
"""Limit of one attempt to connect, and of its handshake."""
_FIRST, _LONGEST = 0.05, 1.0
"""Seconds before the second attempt; they double with each attempt, up to the longest."""
_DOUBLINGS = 10
"""Attempts after which the delay stops doubling: a server may be away for days."""


class Dialer:
    """Makes a connection to an address in a thread of its own, since names and handshakes take time.

    Call `made` after each ring; it returns the connection, which the caller then owns. When it breaks, call
    `dial` again.

    Args:
        address: HOST:PORT, otherwise a `ConfigError` is raised.
        key: key of the cluster; None: not encrypted.
        max_bytes: largest message accepted.
        ring: called in that thread when an attempt has ended.
    """

    def __init__(self, address: str, *, key: Key | None, max_bytes: int, ring: Callable[[], None]) -> None:
        self._place, self._key = split_address(address), key
        self._max_bytes, self._ring = max_bytes, ring
        self._attempts, self._ended = 0, threading.Event()
        self._news: Connection | LostError | None = None

    def dial(self) -> None:
        """Connect in the background; wait longer after each attempt without a call of `succeeded`."""
        delay = min(_FIRST * 2**self._attempts, _LONGEST) if self._attempts else 0.0
        self._attempts = min(self._attempts + 1, _DOUBLINGS)
        threading.Thread(target=self._try, args=(delay,), name="satrap-dialer", daemon=True).start()

    def succeeded(self) -> None:
        """Record that the other side has responded, so that the next `dial` need not wait."""
        self._attempts = 0

    def made(self) -> Connection | None:
        """Return the connection, once, or None if there is none yet; raise a `LostError` if it failed."""
        news, self._news = self._news, None
        if isinstance(news, LostError):
            raise news
        return news

    def close(self) -> None:
        """Make no more connections."""
        self._ended.set()
        self._discard()

    def _try(self, delay: float) -> None:
        if self._ended.wait(delay):
            return
        try:
            self._news = self._connect()
        except LostError as error:
            self._news = error
        # `close` may have called `_discard` before the result was stored, so it is called again here.
        if self._ended.is_set():
            self._discard()
        else:
            self._ring()

    def _connect(self) -> Connection:
        try:
            sock = socket.create_connection(self._place, timeout=_SECONDS)
        except OSError as error:
            raise LostError(error.strerror or str(error), met=False) from error
        try:
            with ending():
                if self._key:
                    sock = encrypted = self._key.protect(sock, server=False)
                    encrypted.do_handshake()
                return Connection(sock, max_bytes=self._max_bytes, ready=True)
        except LostError:
            sock.close()
            raise

    def _discard(self) -> None:
        news, self._news = self._news, None
        if isinstance(news, Connection):
            news.close()
