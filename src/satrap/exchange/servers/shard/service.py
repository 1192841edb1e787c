"""A shard server's request handling, without sockets: one store, requests one after another."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeAlias

import numpy.typing as npt

from satrap.errors import ConfigError, SatrapError, StoreError
from satrap.exchange.resharding.reshard_shard import buckets_of, census, map_change, rehearse
from satrap.exchange.servers.config import ShardConfig, Worker
from satrap.exchange.servers.shard.gradient_barrier import GradientBarrier, member_of
from satrap.exchange.servers.shard.row_requests import EXPORT_ROWS, RowRequests
from satrap.exchange.servers.shard.snapshots import Cuts, ShardSnapshots, error_of, pack_result
from satrap.exchange.servers.shard.worker_registry import WorkerRegistry
from satrap.exchange.states import state_of, take_state
from satrap.exchange.telemetry import ShardStatistics
from satrap.rpc.server.handler import SerialHandler, Work
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import MAX_BYTES, SPLIT, Buffer, FrameError, Header, MessageKind
from satrap.rpc.wire.text import only, pack_text, shortened, unpack_text
from satrap.runtime.fault_points import hit
from satrap.runtime.numba_cache import preparing
from satrap.store import RowChunk, Shard
from satrap.store.row_chunk import FEED_FORMATS
from satrap.store.statistics import merged

MAX_NUMBER = 1 << 63
"""Above the number of any cut."""
SETTLE_SECONDS = 0.01
"""Seconds between two checks whether rows have been read."""
Hello: TypeAlias = Mapping[str, Any]
Parts: TypeAlias = list[Buffer]
_DATA_FOLDER = re.compile(r"data-[0-9a-f]{8}")


class Service(SerialHandler):
    """Executes requests on a `Shard`: requests about rows, about the whole store, and about snapshots.

    Args:
        config: the tables; None: taken from the first hello.
        max_bytes: largest response; a request that would need more is rejected before anything is allocated.

    Attributes:
        members: the clients that it serves.
        repeating: requests come from a journal; files that they wrote are not written again.
        rehearsal: the thread that rehearses a move concurrently with requests, if one was started.
        rehearses: whether it loads or compiles machine code for the tables of a hello before it responds.
        emptied: whether a failed load has made it drop all rows, and the journal does not record that yet.
    """

    role = "shard"
    kinds: Sequence[MessageKind] = tuple(kind for kind in MessageKind if kind < MessageKind.OPEN)

    def __init__(self, config: ShardConfig | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self.config: ShardConfig | None = None
        self.max_bytes = max_bytes
        self.members, self.board = WorkerRegistry(), GradientBarrier()
        self.repeating = self.emptied = self.rehearses = False
        self._opened: RowRequests | None = None
        self._cuts, self._cutter = Cuts.new(), 0
        self.rehearsal: threading.Thread | None = None
        if config is not None:
            self._open(config, config.open())

    def _open(self, config: ShardConfig, store: Shard) -> None:
        """Serve a store, with no state from before."""
        self.config, self.board, self._cuts = config, GradientBarrier(), Cuts.new()
        self._opened = RowRequests(store, self.board, self.max_bytes)

    @property
    def _rows(self) -> RowRequests:
        """Executes requests about rows; raises as `store`."""
        if self._opened is None:
            raise StoreError("this shard has no tables yet", fix="send a hello first")
        return self._opened

    @property
    def store(self) -> Shard:
        """The store; raises a `StoreError` before a hello has configured it."""
        return self._rows.store

    @property
    def _updates(self) -> int:
        return 0 if self._opened is None else self._opened.updates

    @property
    def epoch(self) -> int | None:
        """See `Handler`; None before a hello has configured it."""
        return None if self.config is None else self.config.map.epoch

    def seen(self, session: Session) -> tuple[int, int]:
        """See `SerialHandler.seen`."""
        member = member_of(session)
        waiting = member.open_step == self.board.completed  # its update waits for other ranks
        return member.updates - waiting, self._updates

    def changes(self) -> object:
        """See `SerialHandler.changes`: rows and steps."""
        groups = () if self._opened is None else self.store.groups
        rows = [(g.updates, g.directory.step, g.directory.slots, g.directory.reassigned) for g in groups]
        return self.board.progress, self._updates, rows

    def statistics(self) -> ShardStatistics:
        """Return its counters; any thread may call it."""
        return ShardStatistics(
            **({} if self._opened is None else merged([self.store.statistics()])),
            shard=None if self.config is None else self.config.shard,
            steps=self.board.completed,
            server=self.observe(),
        )

    def close(self) -> None:
        """Free the rows."""
        for each in self._cuts:
            each.stop()
        if self._opened is not None:
            self.store.close()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the store's exact state besides its rows, by name; empty without tables."""
        return {} if self._opened is None else state_of(self.store)

    def remember(self) -> dict[str, Any]:
        """Return the tables, the clients and the number of updates, as plain data."""
        return self.members.remember() | {
            "config": None if self.config is None else self.config.to_dict(),
            "updates": self._updates,
            "follows": self._cuts.snapshots.since if self._cuts.snapshots.followed else None,
        }

    def resume(
        self,
        plain: Mapping[str, Any],
        state: Mapping[str, npt.NDArray[Any]],
        load: Callable[[Service], None] | None,
    ) -> None:
        """Restore the state from `remember` and `state`; `load` loads the rows."""
        if plain["config"] is None:
            return
        config = ShardConfig.from_dict(plain["config"])
        self._open(config, config.open())
        take_state(self.store, state)  # before the rows: with eviction, it assigns them their places
        if load is not None:
            load(self)
        self.members, self._rows.updates = WorkerRegistry.recall(plain), plain["updates"]
        if plain["follows"] is not None:  # the rows are equal to that cut
            self._cuts.snapshots.follow(self.store, plain["follows"])

    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """See `SerialHandler.prepare`."""
        self._check(session, header)
        match header.kind:
            case MessageKind.HELLO:
                return self._greet(session, unpack_text(only(parts)))
            case MessageKind.LOOKUP | MessageKind.PEEK:
                return self._rows.lookup(session, header, parts, self.members.formats[session.client])
            case MessageKind.FETCH:
                return self._rows.fetch(parts)
            case MessageKind.UPDATE:
                return self._rows.update(session, header, parts)
            case MessageKind.EXPORT:
                return self._rows.export(session.client, _export_asked(parts))
            case MessageKind.LOAD:
                return self._rows.load(parts)
            case MessageKind.BYE:
                return Work(partial(self._leave, session))
            case MessageKind.FLUSH:
                return Work(lambda: None)  # requests are served in order, so a flush has nothing to do
        return self._manage(session, header.kind, parts)

    def _check(self, session: Session, header: Header) -> None:
        """Reject requests of clients that are not served, or requests that were split by another map."""
        if header.kind not in (MessageKind.HELLO, MessageKind.BYE):
            self.members.check(session)
        if header.kind in SPLIT and header.epoch != self.epoch:
            raise StoreError(f"the rows of epoch {header.epoch} have moved: the shard is at {self.epoch}")

    def expect(self, kind: int, parts: Sequence[Buffer]) -> None:
        """Prefetch rows from a disk for a request that waits or is announced."""
        if kind in (MessageKind.LOOKUP, MessageKind.PREFETCH) and (rows := self._opened) is not None:
            rows.expect(parts)

    def _leave(self, session: Session) -> None:
        self.members.leave(session.client)
        if self._opened is not None:
            self._opened.forget(lambda client: client == session.client)

    def _manage(self, session: Session, kind: int, parts: Sequence[Buffer]) -> Work:
        """Check a request about the store as a whole."""
        store = self.store
        match kind:
            case MessageKind.STATISTICS:
                about = unpack_text(only(parts)) if parts else {}
                if "rehearsal" in about:
                    return _telling(partial(_rehearse_beside, self, about))
                if about.get("uses") is True:
                    return Work(lambda: [self._rows.uses.lately().data])
                if about:
                    return _telling(partial(census, store, buckets_of(about)))
                return Work(lambda: [pack_text(asdict(self.statistics()))])
            case MessageKind.CUT:
                return _telling(partial(self._take_cut, session, _asked(parts, "number")))
            case MessageKind.PUT_BACK:
                asked = _asked(parts, "number")
                return Work(partial(self._cuts.of(asked).put_back, store, asked["number"]))
            case MessageKind.WRITE | MessageKind.READ | MessageKind.SAVE | MessageKind.JOB:
                return self._job(kind, parts)
            case MessageKind.CLEAR:
                return Work(store.clear)
            case MessageKind.MAP:
                assert self.config is not None
                change = map_change(self.config, store, unpack_text(only(parts)))
                return Work(lambda: self._configure(change()))
        raise FrameError(f"a request has an unknown kind {kind}")

    def _configure(self, config: ShardConfig) -> None:
        assert self.config is not None
        if set(self.config.map.members) - set(config.map.members):
            self._rows.uses.clear()  # counts of a shard that has left are lost, so all shards count from zero
        self.config = config
        hit("shard.map")
        self._rows.forget(lambda _: True)  # an export left by a failed move would keep old versions of rows

    def _take_cut(self, session: Session, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.config is not None
        self._cutter = session.client
        about = {name: asked[name] for name in ("number", "delta", "since", "feed")}
        # the rows of a repeated cut are never requested again
        return self._cuts.of(asked).cut(self.config, self.store, **about, keep=not self.repeating)

    def _job(self, kind: int, parts: Sequence[Buffer]) -> Work:
        """Check a request to write or read a snapshot, or to report its progress."""
        assert self.config is not None
        config, store = self.config, self.store
        match kind:
            case MessageKind.JOB:
                return _telling(partial(self._result, self._cuts.of(_asked(parts))))
            case MessageKind.READ:
                asked = _asked(parts, "url")
                follow = tuple(zip(self._cuts, (asked["number"], asked["feed_number"]), strict=False))
                read = partial(self._cuts.snapshots.read, config, store, asked["url"], follow)
                return Work(partial(read, exact=asked["exact"] is True))
            case MessageKind.SAVE:
                asked = _asked(parts, "url", "folder", "shown")
                if self.repeating:  # the client will send the request again, if it still waits
                    return Work(lambda: None)
                place = asked["url"], asked["folder"], asked["shown"]
                return Work(partial(self._cuts.still.save, config, store, *place))
        asked = _asked(parts, "url", "folder", "number")
        snapshots = self._cuts.of(asked)
        if self.repeating:  # its files are complete, or were abandoned
            return Work(snapshots.stop)
        snapshots.check(config, asked["number"])
        return Work(partial(snapshots.write, asked["url"], asked["folder"]))

    def _result(self, snapshots: ShardSnapshots) -> Mapping[str, Any]:
        """Report the progress of a job; after a failed load, drop the rows that it had loaded."""
        if snapshots.spoilt():
            self.store.clear()
            self.emptied = True
        return snapshots.result()

    def forget(self, gone: Callable[[int], bool]) -> None:
        """See `Handler.forget`: an export or a cut keeps old versions of rows."""
        self.members.forget(gone)
        if self._opened is not None:
            self._opened.forget(gone)
        if gone(self._cutter):
            for each in self._cuts:
                each.let_go()

    @property
    def loaded(self) -> int:
        """Rows read from snapshots so far, including a running load; any thread may read it."""
        return self._cuts.snapshots.loaded

    def load(self, chunk: RowChunk) -> None:
        """Load rows of the snapshot after which requests are repeated."""
        self.store.load(chunk.table, chunk)
        self._cuts.snapshots.loaded += len(chunk.ids)

    def settle(self, stopping: Callable[[], bool]) -> None:
        """Wait until a running load of rows has finished, or until `stopping` returns True.

        Raises:
            CheckpointError: the rows cannot be read.
        """
        assert self.config is not None
        while not (result := self._cuts.snapshots.result())["done"]:
            if stopping():
                return
            time.sleep(SETTLE_SECONDS)
        if "error" in result:
            raise error_of(result["error"], f"shard {self.config.shard}")

    def _greet(self, session: Session, hello: dict[str, Any]) -> Work:
        requested, worker = ShardConfig.from_dict(hello), Worker.from_dict(hello)
        if "rehearsal" in hello:
            return Work(partial(_rehearse, self, hello))
        if session.client in self.members.formats:
            raise StoreError("the same client sent a second hello")
        renewed = False
        if self.config is not None:
            renewed = self.members.renewed_by(worker, repeating=self.repeating)
            # A new generation may use another map.
            same = replace(requested, map=self.config.map) if renewed else requested
            if worker.id.run == self.members.run and (difference := self.config.difference(same)):
                raise ConfigError(
                    f"the shard is configured differently: {difference}",
                    why="all workers of a shard must use the same tables",
                    fix="use the same recipe for all workers, or restart the shards",
                )
        anew = requested if self.config is None or renewed else None
        return Work(partial(self._welcome, session, worker, anew, hello), renews=renewed)

    def _welcome(self, session: Session, worker: Worker, anew: ShardConfig | None, hello: Hello) -> Parts:
        """Add a worker; `anew`: the shard starts again with this configuration, without earlier state."""
        if anew is not None:
            _prepare(self, hello)
            if self.config is not None and not self.config.difference(anew):
                self.close()  # frees the memory before the new store needs it
            store = anew.open()
            self.close()
            self._open(anew, store)
            self.board.completed = worker.completed
            self.members = WorkerRegistry(worker.id.run, worker.id.generation)
        self.members.join(session, worker)
        if session.gated:
            self.board.join(worker.id.rank, worker.id.world)
        groups = [{"index": g.index, "tables": g.tables, "dim": g.dim} for g in self.store.groups]
        about = {"groups": groups, "completed": self.board.completed, "tier": self.store.ahead.useful}
        return [pack_text(about | {"message_bytes": self.max_bytes})]


def _prepare(service: Service, hello: Mapping[str, Any]) -> None:
    """Load or compile the machine code for requests about the tables of a hello."""
    if service.rehearses and "backward" in hello:
        rehearsed = {**hello, "rehearsal": hello["backward"], "tier": None}
        with preparing(), suppress(SatrapError):  # a later request will report the error
            rehearse(Service(max_bytes=service.max_bytes), rehearsed)


def _rehearse(service: Service, hello: Mapping[str, Any]) -> list[Buffer]:
    """Rehearse for a run that this shard will join; its client is not served, and sends a goodbye next."""
    if service.config is None and not service.repeating:
        rehearse(Service(max_bytes=service.max_bytes), hello)
    return [pack_text({"message_bytes": service.max_bytes})]


def _rehearse_beside(service: Service, hello: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rehearse once, concurrently with requests; return whether that is "done"."""
    if service.rehearsal is None and not service.repeating:

        def run() -> None:
            with suppress(SatrapError):  # the first move is then slower, and reports the error
                rehearse(Service(max_bytes=service.max_bytes), hello)

        service.rehearsal = threading.Thread(target=run, name="satrap-rehearsal", daemon=True)
        service.rehearsal.start()
    return {"done": service.rehearsal is None or not service.rehearsal.is_alive()}


def _telling(act: Callable[[], Mapping[str, Any]]) -> Work:
    """Return work whose result is its response."""
    return Work(lambda: pack_result(act()))


_ASKED: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("number", "since", "feed_number"), lambda v: type(v) is int and 0 <= v < MAX_NUMBER),
    **dict.fromkeys(("delta", "exact", "save"), lambda v: type(v) is bool),
    **dict.fromkeys(("url", "shown", "table"), lambda v: type(v) is str),
    "folder": lambda v: type(v) is str and _DATA_FOLDER.fullmatch(v) is not None,
    "feed": lambda v: v in FEED_FORMATS,
    "rows": lambda v: type(v) is int,
}
"""Checks of the values in requests about snapshots and exports."""


def _asked(parts: Sequence[Buffer], *needed: str) -> dict[str, Any]:
    """Return the values of such a request, None for values that it lacks.

    Raises:
        FrameError: a value is invalid, or one of `needed` is missing.
    """
    text = unpack_text(only(parts))
    asked = {name: text.get(name) for name in _ASKED}
    for name, value in asked.items():
        if (value is not None or name in needed) and not _ASKED[name](value):
            raise FrameError(f"a request has an invalid {name}: {shortened(value)}")
    return asked


def _export_asked(parts: Sequence[Buffer]) -> dict[str, Any]:
    """Return the arguments of a new export; empty: continue the client's export."""
    asked, text = _asked(parts), unpack_text(parts[0])
    if not text.keys() & {"table", "buckets"}:
        return {}
    return {"table": asked["table"], "buckets": buckets_of(text), "rows": asked["rows"] or EXPORT_ROWS}
