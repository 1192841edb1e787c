"""The client's state of one server: open requests, requests to send again, and deadlines."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.rpc.wire.frames import (
    ANSWER,
    FAILURE,
    MAX_BYTES,
    NO_SEQUENCE,
    SPLIT,
    Buffer,
    Code,
    Digest,
    Header,
    MessageKind,
    digest,
    encode,
    size_of,
)
from satrap.rpc.wire.text import unpack_text


class ForgottenError(ExchangeError):
    """The server does not know this client any more: it has been restarted."""


Message = list[Buffer]
OnAnswer = Callable[[Sequence[Buffer], SatrapError | None], None]

WINDOW = 128
"""Requests in flight; further ones wait here. The server accepts twice this number."""
HINTS = 16
"""Hints that wait to be sent; older ones are dropped, as they would come too late."""
ACKNOWLEDGE = 1 << 19
"""Bytes of responses after which they are acknowledged without waiting for a request, 512 KiB."""
QUIET = 0.1
"""Seconds until a busy server gets the next PING; they double each time, up to the heartbeat."""
_TRIES = 5
_NO_PAYLOAD = Digest(0, 0, 0)
_ERRORS: dict[int, type[SatrapError]] = {
    Code.STORE: StoreError,
    Code.CONFIG: ConfigError,
    Code.UNKNOWN_CLIENT: ForgottenError,
}


@dataclass(slots=True)
class PendingRequest:
    """A request without a response."""

    header: Header
    parts: Sequence[Buffer]
    payload: Digest
    issued: float
    on_answer: OnAnswer
    sent: bool = False
    refusals: int = 0


class Peer:
    """Numbers the requests to one server and matches the responses; does no input or output.

    Every request is executed once and in order, even if the network loses, duplicates or delays messages:
    sequence numbers identify repetitions, and the response to a PING, the server's position in the sequence,
    shows which messages were lost.

    Args:
        name: "shard 1 at host:port", for errors.
        client: random number of this client.
        epoch: epoch of the shard map; set it when the map changes.
        deadline: seconds without a response after which the server counts as lost.
        heartbeat: seconds of silence after which the server gets a PING.

    Attributes:
        resent: number of requests sent again.
        answered_at: time of the last response.
        greeted: the server has accepted the hello.
        message_bytes: largest payload that the server accepts.
        seen: updates applied before the last completed request: (this client's, all).
    """

    def __init__(self, name: str, *, client: int, epoch: int, deadline: float, heartbeat: float) -> None:
        self.name, self.client, self.epoch = name, client, epoch
        self.deadline, self.heartbeat = deadline, heartbeat
        self.resent, self.answered_at, self.greeted = 0, 0.0, False
        self.seen, self.message_bytes = (0, 0), MAX_BYTES
        self._sequence = 0
        self._pending: OrderedDict[int, PendingRequest] = OrderedDict()
        self._ping, self._ping_at, self._ping_covers, self._ping_open = 0, 0.0, -1, False
        self._unsent, self._recovered = 0, -1
        self._left = self._gone = False  # a goodbye was issued; its response has arrived
        self._unacknowledged = 0
        self._quiet, self._pause, self._busy = 0.0, QUIET, ""
        self._hints: deque[Message] = deque(maxlen=HINTS)

    def hint(self, kind: MessageKind, parts: Sequence[Buffer]) -> None:
        """Let `outgoing` send a message that needs no response and may be lost, after the requests."""
        header = Header(kind, self.epoch, self.client, NO_SEQUENCE)
        self._hints.append([encode(header, digest(parts)), *parts])

    def request(
        self,
        kind: MessageKind,
        parts: Sequence[Buffer],
        on_answer: OnAnswer,
        *,
        now: float,
        step: int = 0,
        lr_scale: float = 1.0,
    ) -> None:
        """Number a request for `outgoing`; reject it at once if it is too large, or follows a goodbye."""
        payload = digest(parts)
        refusal: SatrapError | None = self.refusal(kind, payload.size)
        if self._left:  # after a goodbye the server drops this client, and would never respond
            refusal = ExchangeError(f"{self.name} accepts no more requests: this client has sent its goodbye")
        if refusal is not None:
            on_answer((), refusal)
            return
        self._left = kind == MessageKind.BYE
        header = Header(kind, self.epoch, self.client, self._sequence, 0, step, lr_scale)
        self._pending[self._sequence] = PendingRequest(header, parts, payload, now, on_answer)
        self._sequence += 1
        self._unsent += 1

    def refusal(self, kind: MessageKind, size: int, *, answer: bool = False) -> StoreError | None:
        """Return the error if `size` bytes, of a request or of its `answer`, are too large for the server."""
        if size <= self.message_bytes:
            return None
        what = "response would take" if answer else f"{kind.name.lower()} takes"
        return StoreError(
            f"the {what} {size} bytes, but the limit is {self.message_bytes}",
            where=self.name,
            why="the server executes a request as a whole, so no part of it was sent",
            fix="use smaller batches, more shards, or a shorter number format (wire)",
        )

    @property
    def waiting(self) -> int:
        """Number of open requests."""
        return len(self._pending)

    def open(self, kinds: Collection[int]) -> int:
        """Return the number of open requests of some kinds."""
        return sum(pending.header.kind in kinds for pending in self._pending.values())

    def outgoing(self, now: float, *, busy: bool = False) -> Iterator[Message]:
        """Yield the messages to send; `now` in seconds of the client's clock.

        `busy`: the client waits for some server, so this server should get a heartbeat of the client.
        """
        if self._quiet:
            if now < self._quiet:
                return
            self._quiet = 0.0
            yield self.ping(now)
        if self._unsent:
            for place, pending in enumerate(self._pending.values()):
                if place >= WINDOW or (place and pending.header.kind == MessageKind.BYE):
                    break  # after a BYE the server repeats no responses, so all others must have come
                if not pending.sent:
                    pending.sent = True
                    self._unsent -= 1
                    yield self._message(pending)
        while self._hints and self.greeted and not self._gone:
            yield self._hints.popleft()
        silent = now - max(self.answered_at, self._ping_at, self._oldest())
        if (self._pending or (busy and self.greeted and not self._gone)) and silent >= self.heartbeat:
            yield self.ping(now)
        elif self._unacknowledged >= ACKNOWLEDGE and self._pending and not self._ping_open:
            yield self.ping(now, asking=False)

    def ping(self, now: float, *, asking: bool = True) -> Message:
        """Return a PING, which requests the server's position; not `asking`: it only acknowledges."""
        self._ping, self._ping_at, self._ping_open = self._ping + 1, now, True
        sent = (s for s, p in self._pending.items() if p.sent)
        self._ping_covers, self._unacknowledged = max(sent, default=-1) if asking else -1, 0
        header = Header(MessageKind.PING, self.epoch, self.client, self._ping, self._acknowledged())
        return [encode(header, _NO_PAYLOAD)]

    def receive(self, header: Header, parts: Sequence[Buffer], now: float) -> list[Message]:
        """Handle a response; return the messages to send because of it.

        It raises an `ExchangeError` if the server will not serve this client any more.
        """
        if header.kind == MessageKind.PING | ANSWER:
            return self._pong(header, now)
        if header.kind == FAILURE:
            return self._failure(header, parts, now)
        pending = self._pending.get(header.sequence)
        if header.client == self.client and pending and header.kind == pending.header.kind | ANSWER:
            self.seen = header.acknowledged, header.step
            self._answered(pending, parts, None, now)
        return []

    def overdue(self, now: float) -> ExchangeError | None:
        """Return the error if a request has waited longer than the deadline."""
        if not self._pending:
            return None
        if now - max(self._oldest(), self.answered_at) < self.deadline:
            return None
        kind = MessageKind(next(iter(self._pending.values())).header.kind)
        return ExchangeError(
            f"{self.name} has not responded for {self.deadline:g} s{self._busy}",
            where=f"stage: {kind.name.lower()}; {len(self._pending)} requests wait",
            why=f"training cannot continue without {self.name}",
            fix="look at the server's log; raise the deadline if the server is only slow",
        )

    def excuse(self, seconds: float) -> None:
        """Exclude seconds in which this process did not run: responses may have arrived, unread."""
        self.answered_at += seconds
        for pending in self._pending.values():
            pending.issued += seconds

    def next_deadline(self) -> float:
        """Return when to call `outgoing` and `overdue` again; infinity if no request is open."""
        if not self._pending:
            return float("inf")
        heard = max(self._oldest(), self.answered_at)
        until = min(heard + self.deadline, max(heard, self._ping_at) + self.heartbeat)
        return min(until, self._quiet) if self._quiet else until

    def _oldest(self) -> float:
        return next(iter(self._pending.values())).issued if self._pending else 0.0

    def _acknowledged(self) -> int:
        return next(iter(self._pending), self._sequence)

    def _message(self, pending: PendingRequest) -> Message:
        self._unacknowledged = 0
        epoch = pending.header.epoch if pending.header.kind in SPLIT else self.epoch
        header = replace(pending.header, acknowledged=self._acknowledged(), epoch=epoch)
        return [encode(header, pending.payload), *pending.parts]

    def _answered(
        self, pending: PendingRequest, parts: Sequence[Buffer], error: SatrapError | None, now: float
    ) -> None:
        del self._pending[pending.header.sequence]
        if not self.greeted and error is None:  # responses to earlier PINGs are out of date
            self.greeted, self._ping, self._ping_open = True, self._ping + 1, False
        self._pause, self._busy = QUIET, ""
        self._unacknowledged += size_of(parts)
        self.answered_at, self._gone = now, pending.header.kind == MessageKind.BYE
        pending.on_answer(parts, error)

    def _pong(self, header: Header, now: float) -> list[Message]:
        if header.sequence != self._ping or header.client != self.client:
            return [] if self._ping_open or self._quiet else [self.ping(now)]  # a nudge
        self._ping_open = False
        following, done = header.acknowledged, header.step
        lost = any(following <= s <= self._ping_covers for s in self._pending)
        return [
            self._again(p)
            for s, p in self._pending.items()
            if p.sent and ((s < done and s <= self._ping_covers) or (lost and s >= following))
        ]

    def _again(self, pending: PendingRequest) -> Message:
        self.resent += 1
        return self._message(pending)

    def _failure(self, header: Header, parts: Sequence[Buffer], now: float) -> list[Message]:
        text = unpack_text(parts[0]) if parts else {}
        code = text.get("code")
        error = self._error(text)
        pending = self._pending.get(header.sequence) if header.client == self.client else None
        if code == Code.RECOVERING:  # retried later; the server is alive as long as its step grows
            if header.step != self._recovered:
                self._recovered, self.answered_at = header.step, now
            return []
        if code == Code.UNKNOWN_CLIENT:
            return self._unknown(header, text, error, now)
        if code in (Code.STORE, Code.CONFIG, Code.DEADLINE):
            if pending:
                self._answered(pending, (), error, now)
            return []
        if code == Code.EPOCH and pending is None:
            return []  # for a hint, or a duplicate of a request that was served under an older map
        waits = code == Code.EPOCH and pending is not None and pending.header.kind not in SPLIT
        if code == Code.BUSY or waits:  # treated as lost, but not sent again at once
            if not self._quiet:
                self._quiet, self._pause = now + self._pause, min(2 * self._pause, self.heartbeat)
            self._busy = f": {error.what}"
            return []
        if code == Code.MALFORMED and (pending is None or pending.header.kind != MessageKind.HELLO):
            return self._refused(pending, error, now)
        raise error

    def _unknown(
        self, header: Header, text: dict[str, object], error: SatrapError, now: float
    ) -> list[Message]:
        """Handle UNKNOWN_CLIENT: the hello was lost, or the response is late, or the server has restarted."""
        if self._gone:
            return []
        if not self.greeted:
            return [self._again(p) for p in self._pending.values() if p.sent]
        if text.get("kind") == MessageKind.PING and header.sequence == self._ping:
            first = next(iter(self._pending.values()), None)
            if first is None or first.header.kind != MessageKind.BYE:
                raise error
            self._answered(first, (), None, now)  # the server has forgotten this client, as the BYE requested
            return []
        return [] if self._ping_open else [self.ping(now)]

    def _refused(self, pending: PendingRequest | None, error: SatrapError, now: float) -> list[Message]:
        """Treat a damaged request as lost, unless it is damaged repeatedly."""
        if pending is not None:
            pending.refusals += 1
            if pending.refusals >= _TRIES:
                raise error
        return [] if self._ping_open else [self.ping(now)]

    def _error(self, text: dict[str, object]) -> SatrapError:
        code = text.get("code")
        kind = _ERRORS.get(code, ExchangeError) if isinstance(code, int) else ExchangeError
        what, where, why, fix = (str(text.get(k, "")) for k in ("what", "where", "why", "fix"))
        place = f"{self.name}, {where}" if where else self.name
        return kind(what or "the server sent an error without a text", where=place, why=why, fix=fix)
