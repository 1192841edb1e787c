"""The client's thread: it owns the sockets, sends, receives and watches the clock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.exchange.servers.context import new_context
from satrap.exchange.servers.frames import HEADER_BYTES, MAX_BYTES, FrameError, decode
from satrap.exchange.servers.peer import Message, Peer
from satrap.exchange.servers.security import Key

Task = Callable[[], None]
T = TypeVar("T")
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENTS = _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_IDLE = 3600.0
_STANDSTILL = 1.0
"""Seconds that a round may take longer than planned; beyond it this process was stopped, or starved."""
_PATIENCE = 3
"""Handshakes that may fail before the first answer."""


class Network(Protocol):
    """What carries the messages of one client; tests put a simulated one in place of `Loop`.

    Attributes:
        peers: one per shard.
        sent_bytes, received_bytes: payload so far.
    """

    peers: Sequence[Peer]
    sent_bytes: int
    received_bytes: int

    def clock(self) -> float:
        """Return the time in seconds."""

    def post(self, task: Task) -> None:
        """Run a task in the thread of the network, after those posted before."""

    def wait(self, future: Future[T]) -> T:
        """Return the result of a future that answers will complete."""

    def stop(self) -> None:
        """End it."""


class Loop:
    """Runs tasks and all network traffic of one client in a thread.

    Args:
        peers: one per shard.
        addresses: HOST:PORT of each.
        key: of the cluster, None on loopback.
        on_end: called in the thread, last, with what ended it (None: `stop`).

    Attributes:
        sent_bytes, received_bytes: payload so far.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        addresses: Sequence[str],
        *,
        key: Key | None,
        on_end: Callable[[SatrapError | None], None],
    ) -> None:
        self.peers, self.sent_bytes, self.received_bytes = peers, 0, 0
        self._on_end, self._key = on_end, key
        self._tasks: deque[Task] = deque()
        self._stopping = False
        self._failures: Counter[str] = Counter()
        self._context = new_context()
        self._sockets = [self._connect(address) for address in addresses]
        self._monitors = [s.get_monitor_socket(_EVENTS) for s in self._sockets]
        self._bell = self._context.socket(zmq.PULL)
        self._bell.bind("inproc://tasks")
        self._ringer = self._context.socket(zmq.PUSH)
        self._ringer.connect("inproc://tasks")
        self._ring_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="satrap-exchange", daemon=True)
        self._thread.start()

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        socket.setsockopt(zmq.IPV6, "[" in address)
        if self._key:
            self._key.protect_client(socket)
        try:
            socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise ConfigError(f"{address!r} is no address of a shard: {error.strerror}") from error
        return socket

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def wait(self, future: Future[T]) -> T:
        """Return the result of a future; not from the thread itself."""
        return future.result()

    def post(self, task: Task) -> None:
        """Run a task in the thread, after those posted before."""
        self._tasks.append(task)
        # without a receiver the thread has ended, and has failed whatever was open
        with self._ring_lock, contextlib.suppress(zmq.ZMQError):
            self._ringer.send(b"", zmq.NOBLOCK)

    def stop(self) -> None:
        """End the thread and close the sockets."""
        self.post(self._stop)
        self._thread.join()
        with self._ring_lock:
            self._ringer.close(0)
        self._context.term()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        error: SatrapError | None = ExchangeError("the exchange's thread ended unexpectedly")
        try:
            self._serve()
            error = None
        except SatrapError as ended:
            error = ended
        finally:
            self._on_end(error)
            for socket in (*self._sockets, *self._monitors, self._bell):
                socket.close(0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (*self._sockets, *self._monitors, self._bell):
            poller.register(socket, zmq.POLLIN)
        peer_of = dict(zip(self._sockets, self.peers, strict=True))
        watched = dict(zip(self._monitors, self._sockets, strict=True))
        while not self._stopping:
            until = time.monotonic() + (pause := self._pause()) / 1000
            ready = poller.poll(pause)
            until = min(until, time.monotonic())
            for socket, _ in ready:
                if socket in peer_of:
                    self._receive(socket, peer_of[socket])
                elif socket in watched:
                    self._watch(socket, watched[socket], peer_of[watched[socket]])
                else:
                    self._bell.recv()
            while self._tasks:
                self._tasks.popleft()()
            now, busy = time.monotonic(), any(peer.waiting for peer in self.peers)
            for socket, peer in peer_of.items():
                if now - until > _STANDSTILL:
                    peer.excuse(now - until)
                self._send(socket, peer.outgoing(now, busy=busy))
                if error := peer.overdue(now):
                    raise error

    def _pause(self) -> int:
        """Milliseconds until a peer's clock must be looked at."""
        until = min(peer.next_deadline() for peer in self.peers) - time.monotonic()
        return int(1000 * min(max(until, 0.0), _IDLE)) + 1

    def _receive(self, socket: zmq.Socket[bytes], peer: Peer) -> None:
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            parts = [f.buffer for f in frames[1:]]
            try:
                if len(frames[0]) != HEADER_BYTES:
                    raise FrameError("this is no satrap message")
                header = decode(frames[0].bytes, parts)
            except FrameError as error:
                raise ExchangeError(f"{peer.name} answered with something else: {error.what}") from error
            self.received_bytes += sum(memoryview(p).nbytes for p in parts)
            self._send(socket, peer.receive(header, parts, time.monotonic()))

    def _send(self, socket: zmq.Socket[bytes], messages: Iterable[Message]) -> None:
        for message in messages:
            self.sent_bytes += sum(memoryview(p).nbytes for p in message[1:])
            try:
                socket.send_multipart(message, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return  # the shard takes nothing more now; the next PING finds out what it lacks

    def _watch(self, monitor: zmq.Socket[bytes], socket: zmq.Socket[bytes], peer: Peer) -> None:
        event = recv_monitor_message(monitor)["event"]
        if event & _FAILED:
            # a connection that breaks in its handshake looks like a refusal without detail: try again
            self._failures[peer.name] += 1 if event & zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL else _PATIENCE
            if self._failures[peer.name] >= _PATIENCE and not peer.greeted:
                raise _refused(peer)
            return
        if peer.greeted:  # a reconnect: find out what was lost
            self._send(socket, [peer.ping(time.monotonic())])


def _refused(peer: Peer) -> ExchangeError:
    return ExchangeError(
        f"{peer.name} refused the connection: the keys do not match, or it is no shard",
        where="stage: connection",
        why="only holders of the cluster's key may talk to a shard that has one",
        fix="give every role the same key file, or none on loopback",
    )
