"""What a shard server does with a request, apart from all sockets: one store, requests one after another."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, SatrapError, StoreError
from satrap.exchange.servers.chunks import pack_chunk, unpack_chunk
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.frames import MAX_BYTES, Buffer, FrameError, Header, Kind
from satrap.exchange.servers.payload import ITEM, NO_ROWS, Section, pack, pack_text, unpack, unpack_text
from satrap.exchange.servers.session import Session
from satrap.exchange.servers.snapshots import Asked, Snapshots, error_of
from satrap.exchange.servers.steps import GroupUpdate, Share, StepBoard, merge
from satrap.exchange.servers.wire import CODES, from_wire, to_wire
from satrap.exchange.states import state_of, take_state
from satrap.store import Chunk, Shard

Rows = npt.NDArray[np.float32]
EXPORT_ROWS, EXPORT_BYTES = 65536, 32 << 20
"""Rows per exported chunk, and about how many bytes, at most."""
MAX_WORLD = 65536
T = TypeVar("T", int, str, bool)
_DATA_FOLDER = re.compile(r"data-[0-9a-f]{8}")
SETTLE_SECONDS = 0.01
"""Between two looks whether rows have been read."""


class Service:
    """Executes requests on a `Shard`; one thread calls it.

    Args:
        config: the tables; None: the first hello brings them.
        max_bytes: largest answer; a request that would need more is refused before anything is allocated.

    Attributes:
        observe: counters that the statistics tell under `server`.
        role: what the process calls itself.
        repeating: requests come from a journal; what they wrote elsewhere is not written again.
        generation: of the group of workers that it serves.
    """

    role = "shard"

    def __init__(
        self,
        config: ShardConfig | None = None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.config, self.max_bytes = config, max_bytes
        self.observe: Callable[[], Mapping[str, Any]] = dict
        self.board = StepBoard()
        self.repeating = False
        self._updates = 0
        self._store: Shard | None = None if config is None else config.open()
        self._exports: dict[int, Iterator[Chunk]] = {}
        self._snapshots, self.generation = Snapshots(), 0
        self._forward: dict[int, int] = {}
        self._scratch = np.empty(0, np.float32)

    @property
    def store(self) -> Shard:
        """The store.

        Raises:
            StoreError: no hello has configured it yet.
        """
        if self._store is None:
            raise StoreError("this shard has no tables yet", fix="send a hello first")
        return self._store

    def seen(self, session: Session) -> tuple[int, int]:
        """Return how many updates have been applied: (of a session, of all)."""
        waiting = session.open_step == self.board.completed  # its share of the open step waits for others
        return session.updates - waiting, self._updates

    def statistics(self) -> dict[str, Any]:
        """Return the store's counters, empty without tables, and the server's; any thread may call it."""
        store = {} if self._store is None else self._store.statistics()
        return store | {"server": self.observe()}

    def close(self) -> None:
        """Free the rows."""
        self._snapshots.stop()
        if self._store is not None:
            self._store.close()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return, by name, what the store needs besides its rows to go on exactly; empty without tables."""
        return {} if self._store is None else state_of(self._store)

    def remember(self) -> dict[str, Any]:
        """Return the tables, the number formats of the clients and the number of updates, as plain data."""
        forward = {str(client): code for client, code in self._forward.items()}
        return {
            "config": None if self.config is None else self.config.to_dict(),
            "forward": forward,
            "updates": self._updates,
            "generation": self.generation,
            "follows": self._snapshots.since if self._snapshots.followed else None,
        }

    def resume(
        self,
        plain: Mapping[str, Any],
        state: Mapping[str, npt.NDArray[Any]],
        load: Callable[[Service], None] | None,
    ) -> None:
        """Take over what `remember` and `state` returned; `load` brings the rows."""
        if plain["config"] is None:
            return
        self.config = ShardConfig.from_dict(plain["config"])
        self._store = self.config.open()
        take_state(self.store, state)  # before the rows: where some are evicted, it gives them their places
        if load is not None:
            load(self)
        self._forward = {int(client): code for client, code in plain["forward"].items()}
        self._updates, self.generation = plain["updates"], plain["generation"]
        take_state(self.store, state)
        if plain["follows"] is not None:  # the rows are those of that cut
            self._snapshots.follow(self.store, plain["follows"])

    def execute(self, session: Session, header: Header, parts: Sequence[Buffer]) -> list[Buffer]:
        """Execute a request and return the parts of its answer.

        Raises:
            SatrapError: it is refused; nothing has changed.
        """
        if session.generation < self.generation and header.kind not in (Kind.HELLO, Kind.BYE):
            raise StoreError("a newer group of workers has taken this one's place")
        match header.kind:
            case Kind.HELLO:
                return [self._hello(session, unpack_text(_one(parts)))]
            case Kind.LOOKUP | Kind.PEEK:
                if session.ordered and header.kind == Kind.LOOKUP:
                    self.board.look(session.rank, header.step)
                return self._lookup(session, unpack(parts), create=header.kind == Kind.LOOKUP)
            case Kind.UPDATE:
                self._update(session, header, unpack(parts))
            case Kind.EXPORT:
                return self._export(session, unpack_text(_one(parts)))
            case Kind.BYE:
                self._exports.pop(session.client, None)
                self._forward.pop(session.client, None)
            case Kind.FLUSH:
                pass  # requests are served in order: to be served is all it asks
            case _:
                return self._manage(header.kind, parts)
        return []

    def expect(self, kind: int, parts: Sequence[Buffer]) -> None:
        """Have rows read from a disk that a request which waits, or is yet to come, will look up.

        Returns at once and tells of no error; any thread may call it.
        """
        store = self._store
        if kind == Kind.LOOKUP and store is not None and store.ahead.useful:
            with contextlib.suppress(SatrapError):  # what is wrong with it is said when it is executed
                for s in unpack(parts):
                    if s.ids is not None:
                        store.ahead.prefetch(s.group, s.ids, s.splits)

    def _manage(self, kind: int, parts: Sequence[Buffer]) -> list[Buffer]:
        """Execute a request about the store as a whole."""
        store = self.store
        match kind:
            case Kind.STATISTICS:
                return [pack_text(self.statistics())]
            case Kind.CUT:
                asked = _cut_asked(unpack_text(_one(parts)))
                # of a cut that is repeated nobody can ask for the rows any more
                return [pack_text(self._snapshots.cut(store, asked, keep=not self.repeating))]
            case Kind.PUT_BACK:
                self._snapshots.put_back(store, _value(unpack_text(_one(parts)), "number", int))
            case Kind.WRITE | Kind.READ | Kind.SAVE | Kind.JOB:
                return [pack_text(self._job(kind, unpack_text(_one(parts))))]
            case Kind.LOAD:
                chunk = unpack_chunk(parts)
                store.load(chunk.table, chunk)
            case Kind.CLEAR:
                store.clear()
            case _:
                raise FrameError(f"a request of unknown kind {kind}")
        return []

    def _job(self, kind: int, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start writing or reading a snapshot, or tell how far it is."""
        assert self.config is not None
        if kind == Kind.JOB:
            return self._snapshots.saved() if asked.get("save") is True else self._snapshots.result()
        url = _value(asked, "url", str)
        if kind == Kind.READ:
            number, exact = _maybe(asked, "number", int), asked.get("exact") is True
            self._snapshots.read(self.config, self.store, url, number, exact=exact)
            return {}
        folder = _value(asked, "folder", str)
        if not _DATA_FOLDER.fullmatch(folder):
            raise FrameError(f"{folder!r} is no folder of a checkpoint")
        if kind == Kind.SAVE:
            shown = _value(asked, "shown", str)
            if not self.repeating:  # else the client will ask again, if it still waits
                self._snapshots.save(self.config, self.store, url, folder, shown)
            return {}
        number = _value(asked, "number", int)
        if self.repeating:  # its files were written, or are given up
            self._snapshots.stop()
        else:
            self._snapshots.write(self.config, number, url, folder)
        return {}

    def settle(self) -> None:
        """Wait until rows that are being read are there.

        Raises:
            CheckpointError: they cannot be read.
        """
        assert self.config is not None
        while not (result := self._snapshots.result())["done"]:
            time.sleep(SETTLE_SECONDS)
        if "error" in result:
            raise error_of(result["error"], f"shard {self.config.shard}")

    def renews(self, header: Header, parts: Sequence[Buffer]) -> bool:
        """Whether a request makes an end of everything before it: the first of a new group of workers."""
        if header.kind != Kind.HELLO or self.config is None or len(parts) != 1:
            return False
        try:
            generation = unpack_text(parts[0]).get("generation", 0)
        except FrameError:
            return False
        return isinstance(generation, int) and generation > self.generation

    def _follow(self, generation: int) -> None:
        """Start anew for a new group of workers: no rows, no steps, nothing of the one before.

        Raises:
            ConfigError: it is an older one.
        """
        if generation < self.generation:
            raise ConfigError(f"generation {self.generation} of the workers is here already")
        if generation > self.generation and self.config is not None:
            self.close()
            self._exports.clear()
            self.board, self._store, self._snapshots = StepBoard(), self.config.open(), Snapshots()
        self.generation = generation

    def _hello(self, session: Session, hello: dict[str, Any]) -> bytes:
        asked = ShardConfig.from_dict(hello)
        forward = CODES.get(str(hello.get("forward")))
        rank, world = hello.get("rank"), hello.get("world")
        if not isinstance(rank, int) or not isinstance(world, int) or not 0 <= rank < world <= MAX_WORLD:
            raise ConfigError(f"a hello has an impossible rank or world: {rank!r} of {world!r}")
        if forward is None:
            raise ConfigError("a hello has an unknown wire format")
        generation = _value({"generation": 0} | hello, "generation", int)
        if self.config is None:
            self._store = asked.open()
            self.config = asked
        elif difference := self.config.difference(asked):
            raise ConfigError(
                f"the shard is configured differently: {difference}",
                why="all workers of a shard must agree on its tables",
                fix="use the same recipe everywhere, or restart the shards",
            )
        session.generation = generation
        self._follow(generation)
        self._forward[session.client] = forward
        session.rank, session.gated = rank, hello.get("mode") == "sync" and world > 1
        session.ordered = session.gated and hello.get("ordered") is True
        if session.gated:
            self.board.join(rank, world)
        groups = [{"index": g.index, "tables": g.tables, "dim": g.dim} for g in self.store.groups]
        about = {"groups": groups, "completed": self.board.completed, "tier": self.store.ahead.useful}
        return pack_text(about)

    def _lookup(self, session: Session, sections: Sequence[Section], *, create: bool) -> list[Buffer]:
        code = self._forward.get(session.client)
        if code is None:
            raise StoreError("a lookup before an accepted hello")
        self._check(sections, ITEM[code])
        answer = []
        for s in sections:
            assert s.ids is not None
            dim = self.store.groups[s.group].dim
            if code == CODES["float32"]:
                rows = np.empty((s.count, dim), np.float32)
            else:
                rows = self._buffer(s.count, dim)
            if create:
                self.store.lookup_group(s.group, s.ids, s.splits, rows)
            else:
                self.store.peek_group(s.group, s.ids, s.splits, rows)
            count = np.array([0, s.count], np.int64)
            answer.append(Section(s.group, count, None, code, dim, 1.0, to_wire(rows, code)))
        return pack(answer)

    def _update(self, session: Session, header: Header, sections: Sequence[Section]) -> None:
        self._check(sections, 0)
        if not math.isfinite(header.lr_scale):
            raise StoreError(f"lr_scale must be finite, got {header.lr_scale}")
        if not session.gated:
            for s in sections:
                self._apply(self._gradients(s, self._buffer(s.count, s.dim)), header.lr_scale)
            session.updates, self._updates = session.updates + 1, self._updates + 1
            return
        kept = [self._gradients(s, np.empty((s.count, s.dim), np.float32)) for s in sections]
        shares = self.board.offer(session.rank, header.step, Share(kept, header.lr_scale))
        session.updates, session.open_step = session.updates + 1, header.step
        if shares is not None:
            self._updates += len(shares)
            for update in merge(shares):
                self._apply(update, shares[0].lr_scale)

    def _gradients(self, s: Section, out: Rows) -> GroupUpdate:
        assert s.ids is not None
        return GroupUpdate(s.group, s.ids, s.splits, from_wire(s, out))

    def _apply(self, u: GroupUpdate, lr_scale: float) -> None:
        self.store.update_group(u.group, u.ids, u.splits, u.gradients, lr_scale=lr_scale)

    def _check(self, sections: Sequence[Section], item: int) -> None:
        """Refuse what does not fit the tables; item: bytes per number of the answer, 0 for an update."""
        groups, size = self.store.groups, 0
        for s in sections:
            if s.group >= len(groups) or s.ids is None:
                raise StoreError(f"there is no group {s.group} with ids: there are {len(groups)}")
            group = groups[s.group]
            size += s.count * group.dim * item
            if len(s.splits) != len(group.tables) + 1:
                raise StoreError(f"group {s.group} has {len(group.tables)} tables")
            if not item and (s.format == NO_ROWS or s.dim != group.dim):
                raise StoreError(f"group {s.group} needs gradients of width {group.dim}")
        if size > self.max_bytes:
            raise StoreError(
                f"the answer would take {size} bytes, the limit is {self.max_bytes}",
                fix="look up fewer ids at once",
            )

    def _buffer(self, rows: int, dim: int) -> Rows:
        if len(self._scratch) < rows * dim:
            self._scratch = np.empty(rows * dim * 5 // 4, np.float32)
        return self._scratch[: rows * dim].reshape(rows, dim)

    def _export(self, session: Session, request: dict[str, Any]) -> list[Buffer]:
        if "table" in request:
            table = str(request["table"])
            dim = self.store.groups[self.store.group_of(table)[0]].dim
            rows = min(EXPORT_ROWS, max(1, EXPORT_BYTES // (16 * dim)))
            self._exports[session.client] = self.store.export(table, chunk_rows=rows)
        if session.client not in self._exports:
            raise StoreError(
                "the export has ended, or was lost when the shard was restarted", fix="begin anew"
            )
        chunk = next(self._exports[session.client], None)
        if chunk is None:
            self._exports.pop(session.client, None)
            return [pack_text({"end": True})]
        return pack_chunk(chunk)


def _value(asked: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = asked.get(name)
    if type(value) is not kind:
        raise FrameError(f"a request has an impossible {name}: {str(value)[:40]!r}")
    return value


def _maybe(asked: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if asked.get(name) is None else _value(asked, name, kind)


def _cut_asked(asked: Mapping[str, Any]) -> Asked:
    return Asked(_value(asked, "number", int), _maybe(asked, "delta", bool), _maybe(asked, "since", int))


def _one(parts: Sequence[Buffer]) -> Buffer:
    if len(parts) != 1:
        raise FrameError(f"a control message has one part, got {len(parts)}")
    return parts[0]
