"""A server's end: accepts connections, and protects each from the others."""

from __future__ import annotations

import errno
import resource
import socket
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from satrap.errors import ConfigError
from satrap.rpc.transport.address import split_address
from satrap.rpc.transport.connection import Connection, LostError, Pace
from satrap.rpc.transport.framing import Buffer, Message
from satrap.rpc.transport.key import Key
from satrap.rpc.transport.poller import READ, WRITE, Poller

_BACKLOG = 512
_ACCEPTS = 16
"""Connections accepted in one round."""
_COURTESY = 0.01
"""Seconds of a round for untrusted connections, after all others have had their turn."""
_STRANGER_UNSENT, _STRANGERS_HELD = 1 << 18, 32 << 20
_TICK = 0.25
"""Seconds between checks for slow connections."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a listener; beyond them a connection waits, or is closed.

    A connection is a stranger until the listener's owner calls `trust`.

    Args:
        message_bytes: largest message, all parts together, 256 MiB.
        stranger_bytes: largest message of a stranger, 5 MiB; unfinished messages of all strangers together
            may take 32 MiB.
        connections: connections at a time, 1280; at most half of the file descriptors of this process.
        strangers: strangers among them, 256; the oldest is closed for the next.
        patience: seconds for a stranger to become trusted, and for any connection to send or receive a
            message more slowly than 256 KiB a second, 10.
        held_bytes: unfinished messages of all connections, 512 MiB; beyond it only the oldest of them is
            received, and patience is a tenth.
        unsent_bytes: bytes that wait to be sent on a connection, 64 MiB; beyond it the connection is not
            read, and gets no further messages.
        all_unsent_bytes: the same for all connections, 512 MiB; beyond it only connections without unsent
            messages get further ones, and patience is a tenth.
    """

    message_bytes: int = 256 << 20
    stranger_bytes: int = 5 << 20
    connections: int = 1280
    strangers: int = 256
    patience: float = 10.0
    held_bytes: int = 512 << 20
    unsent_bytes: int = 64 << 20
    all_unsent_bytes: int = 512 << 20


class _Guest:
    """A connection and the listener's state of it."""

    def __init__(self, number: Hashable, connection: Connection, now: float) -> None:
        self.number, self.connection, self.since = number, connection, now
        self.trusted, self.served = False, 0
        self.arriving, self.leaving = Pace(now), Pace(now)
        self.held = self.unsent = 0


class Listener:
    """Accepts connections, and exchanges messages with them in the thread that calls `poll`.

    Connections have numbers, which are never used again.

    Args:
        address: HOST:PORT; port 0 takes a free one.
        key: key that clients must hold; None: anyone may connect.
        bounds: see `Bounds`.
        on_message: called with a connection's number and a message from it.
        on_end: called with the number of a trusted connection that has ended.

    Attributes:
        address: HOST:PORT it listens on.
        held, unsent: bytes of unfinished and of unsent messages.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        key: Key | None = None,
        bounds: Bounds | None = None,
        on_message: Callable[[Hashable, Message], None],
        on_end: Callable[[Hashable], None] = lambda _: None,
    ) -> None:
        self.bounds, self._key = bounds or Bounds(), key
        self._on_message, self._on_end = on_message, on_end
        self._socket = _listen(address)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = self.bounds.connections
        if files != resource.RLIM_INFINITY:
            self._most = min(self._most, files // 2)
        self.held = self.unsent = 0
        self._guests: dict[Hashable, _Guest] = {}
        self._strangers: dict[Hashable, _Guest] = {}
        self._unfinished: dict[Hashable, _Guest] = {}
        self._denied: dict[Hashable, _Guest] = {}
        self._number, self._round, self._looked = 0, 0, time.monotonic()
        self._poller: Poller[_Guest | None] = Poller()
        self._poller.watch(self._socket, READ, None)

    def __contains__(self, number: Hashable) -> bool:
        return number in self._guests

    def ring(self) -> None:
        """Let `poll` return soon; any thread may call it."""
        self._poller.ring()

    def poll(self, seconds: float) -> None:
        """Exchange messages; return after one round, or when nothing happens for `seconds`."""
        ready, self._round = self._poller.wait(min(seconds, _TICK)), self._round + 1
        late = time.monotonic() + _COURTESY
        for guest, events in sorted(ready, key=_turn):
            if guest is None:
                self._accept()
            elif guest.trusted or time.monotonic() < late:
                guest.served = self._round
                self._serve(guest, events)
            elif guest.connection.more:
                self._poller.again(guest)
        for guest in list(self._denied.values()):
            self._watch(guest)
        now = time.monotonic()
        if now - self._looked >= _TICK:
            self._looked = now
            self._look(now)

    def send(self, number: Hashable, parts: Sequence[Buffer]) -> bool:
        """Send a message; return False if the connection is gone or accepts no more for now."""
        guest = self._guests.get(number)
        if guest is None:
            return False
        waiting = guest.connection.unsent
        crowded = waiting > 0 and self.unsent >= self.bounds.all_unsent_bytes
        if crowded or waiting >= self._most_unsent(guest) or not guest.connection.ready:
            return False
        guest.connection.send(parts)
        self._serve(guest, WRITE)
        return not guest.connection.closed

    def trust(self, number: Hashable, trusted: bool = True) -> None:
        """Treat a connection as a client's, or as a stranger's again."""
        guest = self._guests.get(number)
        if guest is None or guest.trusted == trusted:
            return
        guest.trusted, guest.since = trusted, time.monotonic()
        reader = guest.connection.reader
        reader.max_bytes = self.bounds.message_bytes if trusted else self.bounds.stranger_bytes
        if trusted:
            del self._strangers[number]
        else:
            self._strangers[number] = guest

    def pause(self, number: Hashable, paused: bool) -> None:
        """Stop receiving on a connection, though a few messages may still arrive; or receive again."""
        guest = self._guests.get(number)
        if guest is not None and guest.connection.paused != paused:
            guest.connection.paused = paused
            self._watch(guest)

    def close(self, linger: float = 0.0) -> None:
        """Close everything; unsent messages may still be sent for at most `linger` seconds."""
        self._poller.watch(self._socket, 0, None)
        self._socket.close()
        until = time.monotonic() + linger
        while self.unsent and (remaining := until - time.monotonic()) > 0:
            for guest in list(self._guests.values()):
                guest.connection.paused = True
                self._watch(guest)
            for guest_ready, _ in self._poller.wait(remaining):
                if guest_ready is not None:
                    self._serve(guest_ready, WRITE)
        for guest in list(self._guests.values()):
            self._drop(guest)
        self._poller.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:  # close a connection; until then the socket would stay readable
                    self._evict()
                    self._poller.watch(self._socket, 0, None)  # until the next `_look`
                if error.errno in (*_EXHAUSTED, errno.EAGAIN):
                    return
                continue  # the connection ended before it was accepted
            if len(self._strangers) >= self.bounds.strangers or len(self._guests) >= self._most:
                self._evict()
            if len(self._guests) >= self._most:
                sock.close()
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            if self._key:
                sock = self._key.protect(sock, server=True)
            connection = Connection(sock, max_bytes=self.bounds.stranger_bytes, ready=False)
        except (OSError, ValueError):  # the connection has ended already
            sock.close()
            return
        self._number += 1
        guest = _Guest(self._number, connection, time.monotonic())
        self._guests[guest.number] = self._strangers[guest.number] = guest
        self._watch(guest)

    def _evict(self) -> None:
        """Close the oldest stranger, if there is one."""
        if oldest := next(iter(self._strangers.values()), None):
            self._drop(oldest)

    def _drop(self, guest: _Guest) -> None:
        if guest.connection.closed:
            return
        self._poller.watch(guest.connection, 0, guest)
        guest.connection.close()
        for registry in (self._guests, self._strangers, self._unfinished, self._denied):
            registry.pop(guest.number, None)
        self.held -= guest.held
        self.unsent -= guest.unsent
        if guest.trusted:
            self._on_end(guest.number)

    def _serve(self, guest: _Guest, events: int) -> None:
        """Continue the handshake of a connection, or receive and send."""
        connection = guest.connection
        try:
            if connection.closed:  # since the round began
                return
            if not connection.ready:
                connection.greet()
            elif events & READ and self._may_read(guest):
                for message in connection.receive():
                    self._unfinished.pop(guest.number, None)
                    self._on_message(guest.number, message)
            if events & WRITE and connection.ready:
                connection.flush()
        except LostError:
            self._drop(guest)
        self._watch(guest)

    def _most_unsent(self, guest: _Guest) -> int:
        return self.bounds.unsent_bytes if guest.trusted else _STRANGER_UNSENT

    def _may_read(self, guest: _Guest) -> bool:
        if guest.connection.paused or guest.connection.unsent >= self._most_unsent(guest):
            return False
        crowded = self.held >= self.bounds.held_bytes
        if crowded and guest is not next(iter(self._unfinished.values()), guest):
            self._denied[guest.number] = guest
            return False
        self._denied.pop(guest.number, None)
        return True

    def _watch(self, guest: _Guest) -> None:
        """Update the sums, and register for the next possible events of a connection."""
        connection = guest.connection
        if connection.closed:
            return
        self.held += connection.reader.held - guest.held
        self.unsent += connection.unsent - guest.unsent
        guest.held, guest.unsent = connection.reader.held, connection.unsent
        if not guest.held:
            self._unfinished.pop(guest.number, None)
        else:
            self._unfinished.setdefault(guest.number, guest)
        if guest.held and not guest.trusted:
            while sum(g.held for g in self._strangers.values()) > _STRANGERS_HELD:
                self._evict()
            if connection.closed:
                return
        reading = self._may_read(guest)
        self._poller.watch(connection, connection.wants(reading=reading), guest)
        if connection.more and reading:
            self._poller.again(guest)

    def _look(self, now: float) -> None:
        """Close slow connections, and accept again."""
        self._poller.watch(self._socket, READ, None)
        patience = self.bounds.patience
        crowded = self.unsent >= self.bounds.all_unsent_bytes
        for guest in list(self._guests.values()):
            c = guest.connection
            waited = 0.0 if guest.trusted else now - guest.since
            if guest.number not in self._denied:
                idle = not c.reader.held or not self._may_read(guest)
                waited = max(waited, guest.arriving.slow(c.received, now, idle=idle))
            leaving = guest.leaving.slow(c.sent, now, idle=not c.unsent)
            if waited > patience or leaving > (patience / 10 if crowded else patience):
                self._drop(guest)
        while self.held >= self.bounds.held_bytes:
            oldest = next(iter(self._unfinished.values()))
            if oldest.arriving.slow(oldest.connection.received, now, idle=False) <= patience / 10:
                return
            self._drop(oldest)


def _turn(ready: tuple[_Guest | None, int]) -> tuple[bool, bool, int]:
    """Sort clients first, then the listening socket, then strangers, which take turns."""
    guest, _ = ready
    return (True, False, 0) if guest is None else (not guest.trusted, True, guest.served)


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    host = "127.0.0.1" if host == "localhost" else "" if host == "*" else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    return sock
