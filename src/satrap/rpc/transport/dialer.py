"""A client's end of a connection, which is re-established whenever it breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

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
        self._attempt: Future[Connection] | None = None

    def dial(self) -> None:
        """Connect in the background; wait longer after each attempt without a call of `succeeded`."""
        delay = min(_FIRST * 2**self._attempts, _LONGEST) if self._attempts else 0.0
        self._attempts, self._attempt = min(self._attempts + 1, _DOUBLINGS), Future()
        threading.Thread(target=self._try, args=(delay,), name="satrap-dialer", daemon=True).start()

    def succeeded(self) -> None:
        """Record that the other side has responded, so that the next `dial` need not wait."""
        self._attempts = 0

    def made(self) -> Connection | None:
        """Return the connection, once, or None if there is none yet; raise a `LostError` if it failed."""
        if self._attempt is None or not self._attempt.done():
            return None
        attempt, self._attempt = self._attempt, None
        return attempt.result()

    def close(self) -> None:
        """Make no more connections."""
        self._ended.set()
        if self._attempt is not None:
            self._attempt.add_done_callback(_discard)

    def _try(self, delay: float) -> None:
        attempt = self._attempt
        if attempt is None or self._ended.wait(delay):
            return
        try:
            attempt.set_result(self._connect())
        except LostError as error:
            attempt.set_exception(error)
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


def _discard(attempt: Future[Connection]) -> None:
    if attempt.exception() is None:
        attempt.result().close()
