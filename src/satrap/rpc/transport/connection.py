"""One end of a connection: a socket that never blocks, what arrives on it and what waits to be sent."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence

from satrap.rpc.transport.framing import Buffer, FramingError, Message, Reader, prefix
from satrap.rpc.transport.poller import READ, WRITE

SMALL = 1 << 12
"""Parts of at most so many bytes are copied and sent with their neighbours."""
_SCRATCH = 1 << 12
_BURST = 64
"""Times a socket is read, or written, before others have their turn."""
_MESSAGES = 16
"""Messages after which others have their turn."""
_VECTOR = 256
"""Pieces handed over in one call; the system takes 1024."""
_AT_ONCE = 1 << 20
"""A thread that waits for a large part is woken when so much of it is there."""
_RECORD = 1 << 15
"""More bytes than the encryption may have taken in of a record that is not whole yet."""
_RATE = 1 << 18
"""Bytes a second below which a connection is slow."""


class LostError(Exception):
    """The connection has ended.

    Args:
        reason: for people.
        stranger: the other side speaks something else, or lacks the key.
        met: there was somebody at the other side.
    """

    def __init__(self, reason: str, *, stranger: bool = False, met: bool = True) -> None:
        super().__init__(reason)
        self.stranger, self.met = stranger, met


class Pace:
    """Since when something has moved fewer than 256 KiB a second, though it had more to move.

    Args:
        now: seconds of the caller's clock.
    """

    def __init__(self, now: float) -> None:
        self._since, self._moved = now, 0

    def slow(self, moved: int, now: float, *, idle: bool) -> float:
        """Return for how many seconds it has been slow; 0 if `idle`: it had nothing to move.

        Args:
            moved: bytes so far.
            now: seconds of the same clock.
            idle: nothing was to be moved, or could not be for reasons of our own.
        """
        if idle or moved - self._moved > _RATE * (now - self._since):
            self._since, self._moved = now, moved
        return now - self._since


class Connection:
    """Sends and receives messages without ever waiting; one thread uses it.

    Args:
        sock: connected; it is this object's from now on. An `SSLSocket` encrypts.
        max_bytes: of a message that arrives, all parts together.
        ready: the handshake of an `SSLSocket` is over.

    Attributes:
        ready: messages may be exchanged; until then call `greet` when something can be read or written.
        more: something has arrived that no poller sees: call `receive` again.
        paused: `receive` shall return as soon as it can.
        unsent: bytes that wait to be sent.
        sent, received: bytes of messages so far.
        closed: `close` has been called.
    """

    def __init__(self, sock: socket.socket, *, max_bytes: int, ready: bool) -> None:
        sock.setblocking(False)
        _tune(sock)
        self._encrypted = sock if isinstance(sock, ssl.SSLSocket) else None
        self._socket = sock
        self._reader = Reader(max_bytes)
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

    @property
    def held(self) -> int:
        """Bytes in memory for an unfinished message; 0: there is none."""
        return self._reader.held

    def accept_up_to(self, max_bytes: int) -> None:
        """Change how large messages may be, from the next one on."""
        self._reader.max_bytes = max_bytes

    def wants(self, *, reading: bool = True) -> int:
        """Return what to wait for: READ, WRITE or both.

        Args:
            reading: whether messages are wanted.
        """
        if not self.ready:
            return self._greeting
        return (READ if reading else 0) | (WRITE if self._queue else 0)

    def greet(self) -> None:
        """Go on with the handshake; `ready` afterwards, or not yet.

        Raises:
            LostError: the other side lacks the key, or has gone.
        """
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
        """Yield the messages that have arrived, or some of them: look at `more`.

        Raises:
            LostError: the other side has gone, or what it sent is no message.
        """
        self.more, messages = True, 0
        try:
            for _ in range(_BURST):
                if self.paused or messages >= _MESSAGES:
                    return
                space = self._reader.space()
                into = self._scratch if space is None else space
                count = self._read(into)
                if count is None:
                    self.more = False
                    return
                for message in self._take(space, count):
                    messages += 1
                    yield message
                if count < len(into) and self._encrypted is None:
                    self.more = False
                    return
        finally:
            self._await()

    def _take(self, space: memoryview | None, count: int) -> Iterator[Message]:
        """Yield the messages that bytes complete which have just been received."""
        self.received += count
        if space is not None:
            message = self._reader.filled(count)
            if message is not None:
                yield message
            return
        try:
            yield from self._reader.feed(self._scratch[:count])
        except FramingError as error:
            raise LostError(error.what, stranger=True) from None

    def _read(self, into: memoryview) -> int | None:
        """Receive bytes; None: there are none."""
        with ending():
            try:
                count = self._socket.recv_into(into)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
        if not count:
            raise LostError("the other side has closed the connection")
        return count

    def _await(self) -> None:
        """Have the system report what arrives in larger pieces, as long as a large part lacks bytes."""
        space = self._reader.space()
        awaited = 1 if space is None else max(1, min(len(space) - _RECORD, _AT_ONCE))
        if awaited != self._awaited and not self.closed:
            self._awaited = awaited
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a message when there is room: `flush` does. Its parts must not change until then."""
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
        """Send what the system takes now.

        Raises:
            LostError: the other side has gone.
        """
        with ending():
            for _ in range(_BURST):
                if not self._queue or not self._write():
                    return

    def _write(self) -> bool:
        """Send some bytes; return whether the system may take more."""
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
        self._sent(count)
        return self._encrypted is not None or count == offered

    def _sent(self, count: int) -> None:
        self.unsent -= count
        self.sent += count
        while count:
            first = self._queue[0]
            if count < len(first):
                self._queue[0] = first[count:]
                return
            count -= len(first)
            self._queue.popleft()

    def close(self) -> None:
        """Close it at once; what was not sent, or not received to its end, is lost."""
        self.closed = True
        self._reader = Reader(0)
        self._queue.clear()
        self.unsent = 0
        self._socket.close()


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Turn what the system and the encryption raise at the end of a connection into a `LostError`."""
    try:
        yield
    except ssl.SSLEOFError as error:
        raise LostError("the other side has closed the connection") from error
    except ssl.SSLError as error:
        raise LostError(error.reason or str(error), stranger=True) from error
    except OSError as error:
        raise LostError(error.strerror or str(error)) from error


def _tune(sock: socket.socket) -> None:
    """Send at once, and notice within half a minute when the other machine has gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
    for name, value in options.items():
        if hasattr(socket, name):  # which a system has differs
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
