"""One end of a connection: a socket that never blocks, with queues for both directions."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence

from satrap.rpc.transport.framing import Buffer, FramingError, Message, Reader, prefix
from satrap.rpc.transport.poller import READ, WRITE

SMALL = 1 << 12
"""Parts up to this many bytes are copied and sent with their neighbours."""
_SCRATCH = 1 << 12
_BURST = 64
"""Reads or writes of a socket before other connections have their turn."""
_MESSAGES = 16
"""Messages received before other connections have their turn."""
_VECTOR = 256
"""Pieces sent with one call; the system accepts 1024."""
_AT_ONCE = 1 << 20
"""Bytes of a large part that must arrive before a waiting thread is woken."""
_RECORD = 1 << 15
"""More bytes than the encryption may hold of an unfinished record."""
_RATE = 1 << 18
"""Bytes a second below which a connection is slow."""


class LostError(Exception):
    """The connection has ended. `met`: the other side was reached.

    `stranger`: the other side speaks another protocol, or lacks the key.
    """

    def __init__(self, reason: str, *, stranger: bool = False, met: bool = True) -> None:
        super().__init__(reason)
        self.stranger, self.met = stranger, met


class Pace:
    """Measures for how long a transfer has been slower than 256 KiB a second; the caller gives the times."""

    def __init__(self, now: float) -> None:
        self._since, self._moved = now, 0

    def slow(self, moved: int, now: float, *, idle: bool) -> float:
        """Return for how many seconds the transfer, of `moved` bytes so far, has been slow.

        Time while it is `idle` does not count: there was nothing to transfer, or this side held it up.
        """
        if idle or moved - self._moved > _RATE * (now - self._since):
            self._since, self._moved = now, moved
        return now - self._since


class Connection:
    """Sends and receives messages without blocking; one thread uses it.

    Args:
        sock: connected socket, which this object owns from now on. An `SSLSocket` encrypts.
        max_bytes: largest message accepted, all parts together.
        ready: the handshake of an `SSLSocket` is complete.

    Attributes:
        reader: see `Reader`.
        ready: messages may be exchanged; until then call `greet` when the socket can be read or written.
        more: data has arrived that no poller sees: call `receive` again.
        paused: `receive` returns as soon as possible.
        unsent: bytes that wait to be sent.
        sent, received: bytes of messages so far.
        closed: `close` has been called.
    """

    def __init__(self, sock: socket.socket, *, max_bytes: int, ready: bool) -> None:
        sock.setblocking(False)
        _tune(sock)
        self._encrypted = sock if isinstance(sock, ssl.SSLSocket) else None
        self._socket = sock
        self.reader = Reader(max_bytes)
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._queue: deque[memoryview] = deque()
        self._awaited = 1
        self.ready = ready or self._encrypted is None
        self.more, self.paused, self.closed = ready, False, False
        self._greeting = READ
        self.unsent, self.sent, self.received = 0, 0, 0

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def wants(self, *, reading: bool = True) -> int:
        """Return the events to wait for: READ, WRITE or both; `reading`: whether messages are wanted."""
        if not self.ready:
            return self._greeting
        return (READ if reading else 0) | (WRITE if self._queue else 0)

    def greet(self) -> None:
        """Continue the handshake until `ready`; raise a `LostError` if it fails."""
        assert self._encrypted is not None
        with ending():
            try:
                self._encrypted.do_handshake()
                self.ready = self.more = True
            except ssl.SSLWantReadError:
                self._greeting = READ
            except ssl.SSLWantWriteError:
                self._greeting = WRITE

    def receive(self) -> Iterator[Message]:
        """Yield messages that have arrived; if `more` is set afterwards there are others.

        It raises a `LostError` if the other side is gone, or sends invalid messages.
        """
        self.more, messages = True, 0
        with ending():
            try:
                for _ in range(_BURST):
                    if self.paused or messages >= _MESSAGES:
                        return
                    space = self.reader.space()
                    into = self._scratch if space is None else space
                    count = self._read(into)
                    if count is None:
                        self.more = False
                        return
                    self.received += count
                    for message in (
                        self.reader.feed(into[:count]) if space is None else self.reader.filled(count)
                    ):
                        messages += 1
                        yield message
                    if count < len(into) and self._encrypted is None:
                        self.more = False
                        return
            finally:
                self._await()

    def _read(self, into: memoryview) -> int | None:
        """Receive bytes; None: none have arrived."""
        try:
            count = self._socket.recv_into(into)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        if not count:
            raise LostError("the other side has closed the connection")
        return count

    def _await(self) -> None:
        """While a large part lacks bytes, let the system report them in large pieces only."""
        space = self.reader.space()
        awaited = 1 if space is None else max(1, min(len(space) - _RECORD, _AT_ONCE))
        if awaited != self._awaited and not self.closed:
            self._awaited = awaited
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Queue a message for `flush`; its parts must not change until they are sent."""
        views = [memoryview(part).cast("B") if memoryview(part).nbytes else b"" for part in parts]
        small = [prefix([len(view) for view in views])]
        for view in views:
            if len(view) <= SMALL:
                small.append(bytes(view))
                continue
            self._put(memoryview(b"".join(small)))
            self._put(memoryview(view))
            small = []
        self._put(memoryview(b"".join(small)))

    def _put(self, piece: memoryview) -> None:
        if len(piece):
            self._queue.append(piece)
            self.unsent += len(piece)

    def flush(self) -> None:
        """Send as much as the system accepts now; raise a `LostError` if the other side is gone."""
        with ending():
            for _ in range(_BURST):
                if not self._queue or not self._write():
                    return

    def _write(self) -> bool:
        """Send some bytes; return whether the system may accept more."""
        try:
            if self._encrypted is not None:
                offered = len(self._queue[0])
                count = self._encrypted.send(self._queue[0])
            else:
                pieces = [self._queue[i] for i in range(min(_VECTOR, len(self._queue)))]
                offered = sum(map(len, pieces))
                count = self._socket.sendmsg(pieces)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return False
        self.unsent -= count
        self.sent += count
        more = self._encrypted is not None or count == offered
        while count and count >= len(self._queue[0]):
            count -= len(self._queue.popleft())
        if count:
            self._queue[0] = self._queue[0][count:]
        return more

    def close(self) -> None:
        """Close at once; unsent and half-received messages are lost."""
        self.closed = True
        self.reader.clear()
        self._queue.clear()
        self.unsent = 0
        self._socket.close()


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Turn errors that end a connection into a `LostError`."""
    try:
        yield
    except FramingError as error:
        raise LostError(error.what, stranger=True) from None
    except ssl.SSLEOFError as error:
        raise LostError("the other side has closed the connection") from error
    except ssl.SSLError as error:
        raise LostError(error.reason or str(error), stranger=True) from error
    except OSError as error:
        raise LostError(error.strerror or str(error)) from error


def _tune(sock: socket.socket) -> None:
    """Send without delay, and detect within half a minute that the other machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
    for name, value in options.items():
        if hasattr(socket, name):  # some systems lack some of these options
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
