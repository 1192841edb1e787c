"""What a shard server does with a request, apart from all sockets: one store, requests one after another."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, SatrapError, StoreError
from satrap.exchange.servers.chunks import pack_chunk, unpack_chunk
from satrap.exchange.servers.config import ShardConfig, Worker
from satrap.exchange.servers.sections import ITEM, NO_ROWS, Section, pack, unpack
from satrap.exchange.servers.snapshots import Asked, Snapshots, error_of, pack_result
from satrap.exchange.servers.steps import GroupUpdate, Share, StepBoard, member_of, merge
from satrap.exchange.servers.wire import CODES, from_wire, to_wire
from satrap.exchange.states import state_of, take_state
from satrap.rpc.server.handler import SerialHandler, Work
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import MAX_BYTES, Buffer, FrameError, Header, Kind
from satrap.rpc.wire.text import only, pack_text, shortened, unpack_text
from satrap.store import Chunk, Shard
from satrap.store.shard import check_lookups
from satrap.store.types import check_rows, plain

Rows = npt.NDArray[np.float32]
EXPORT_ROWS, EXPORT_BYTES = 65536, 32 << 20
"""Rows per exported chunk, and about how many bytes, at most."""
MISSED = 100
"""Generations of workers a shard may not hear of: all of them died before they greeted it."""
MAX_NUMBER = 1 << 63
"""Above the number of any cut."""
SETTLE_SECONDS = 0.01
"""Between two looks whether rows have been read."""
T = TypeVar("T", int, str, bool)
_SHOWN = 8
"""Characters of a run's identity that an error shows: enough to tell runs apart, not to join one."""
_LARGEST = float(np.finfo(np.float32).max)
_DATA_FOLDER = re.compile(r"data-[0-9a-f]{8}")


class Service(SerialHandler):
    """Executes requests on a `Shard`.

    Args:
        config: the tables; None: the first hello brings them.
        max_bytes: largest answer; a request that would need more is refused before anything is allocated.

    Attributes:
        repeating: requests come from a journal; what they wrote elsewhere is not written again.
        generation: of the group of workers that it serves.
        run: identity of the run that it serves.
        emptied: it has let all rows go since a reading failed, and a journal does not know that yet.
    """

    role = "shard"
    kinds = tuple(kind for kind in Kind if kind < Kind.OPEN)

    def __init__(self, config: ShardConfig | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self.config, self.max_bytes = config, max_bytes
        self.board = StepBoard()
        self.repeating = self.emptied = False
        self._updates = 0
        self._store: Shard | None = None if config is None else config.open()
        self._exports: dict[int, Iterator[Chunk]] = {}
        self._snapshots, self.generation, self.run = Snapshots(), 0, ""
        self._cutter = 0  # client that had the last cut taken
        self._present: set[int] = set()  # clients of the run that have not left it
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

    @property
    def epoch(self) -> int | None:
        """See `Handler`; None before a hello has configured it."""
        return None if self.config is None else self.config.map.epoch

    def seen(self, session: Session) -> tuple[int, int]:
        """See `SerialHandler.seen`."""
        member = member_of(session)
        waiting = member.open_step == self.board.completed  # its share of the open step waits for others
        return member.updates - waiting, self._updates

    def changes(self) -> object:
        """See `SerialHandler.changes`: rows and steps."""
        groups = () if self._store is None else self._store.groups
        rows = [(g.updates, g.directory.step, g.directory.slots, g.directory.reassigned) for g in groups]
        return self.board.progress, self._updates, rows

    def statistics(self) -> dict[str, Any]:
        """Return the store's counters, empty without tables, and the server's; any thread may call it."""
        store = {} if self._store is None else self._store.statistics()
        shard = "" if self.config is None else str(self.config.shard)
        return store | {"server": {**self.observe(), "steps": self.board.completed, "shard": shard}}

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
            "run": self.run,
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
        self._present = set(self._forward)
        self._updates, self.generation, self.run = plain["updates"], plain["generation"], plain["run"]
        if plain["follows"] is not None:  # the rows are those of that cut
            self._snapshots.follow(self.store, plain["follows"])

    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """See `SerialHandler.prepare`."""
        if member_of(session).generation < self.generation and header.kind not in (Kind.HELLO, Kind.BYE):
            raise StoreError("a newer group of workers has taken this one's place")
        if session.client not in self._forward and header.kind not in (Kind.HELLO, Kind.BYE):
            raise StoreError("a request before an accepted hello, or of a run that is over")
        match header.kind:
            case Kind.HELLO:
                return self._greet(session, unpack_text(only(parts)))
            case Kind.LOOKUP | Kind.PEEK:
                return self._lookup(session, header, self._sections(parts))
            case Kind.UPDATE:
                return self._update(session, header, self._sections(parts))
            case Kind.EXPORT:
                return self._export(session, unpack_text(only(parts)))
            case Kind.BYE:
                return Work(partial(self._leave, session))
            case Kind.FLUSH:
                return Work(list)  # requests are served in order: to be served is all it asks
        return self._manage(session, header.kind, parts)

    def expect(self, kind: int, parts: Sequence[Buffer]) -> None:
        """Have rows read from a disk that a request which waits, or is yet to come, will look up."""
        store = self._store
        if kind in (Kind.LOOKUP, Kind.PREFETCH) and store is not None and store.ahead.useful:
            with contextlib.suppress(SatrapError):  # what is wrong with it is said when it is executed
                for s in self._sections(parts):
                    if s.ids is not None:
                        store.ahead.prefetch(s.group, s.ids, s.splits)

    def _leave(self, session: Session) -> list[Buffer]:
        self._exports.pop(session.client, None)
        self._forward.pop(session.client, None)
        self._present.discard(session.client)
        return []

    def _manage(self, session: Session, kind: int, parts: Sequence[Buffer]) -> Work:
        """Check a request about the store as a whole."""
        store, snapshots = self.store, self._snapshots
        match kind:
            case Kind.STATISTICS:
                return Work(lambda: [pack_text(self.statistics())])
            case Kind.CUT:
                asked = _cut_asked(unpack_text(only(parts)))
                return _telling(partial(self._take_cut, session, asked))
            case Kind.PUT_BACK:
                return _silent(partial(snapshots.put_back, store, _number(unpack_text(only(parts)))))
            case Kind.WRITE | Kind.READ | Kind.SAVE | Kind.JOB:
                return self._job(kind, unpack_text(only(parts)))
            case Kind.LOAD:
                chunk = unpack_chunk(parts)
                self._check_chunk(chunk)
                return _silent(partial(store.load, chunk.table, chunk))
            case Kind.CLEAR:
                return _silent(store.clear)
        raise FrameError(f"a request of unknown kind {kind}")

    def _take_cut(self, session: Session, asked: Asked) -> Mapping[str, Any]:
        self._cutter = session.client
        # of a cut that is repeated nobody can ask for the rows any more
        return self._snapshots.cut(self.store, asked, keep=not self.repeating)

    def _job(self, kind: int, asked: Mapping[str, Any]) -> Work:
        """Check a request to write or read a snapshot, or to tell how far it is."""
        assert self.config is not None
        snapshots, config, store = self._snapshots, self.config, self.store
        if kind == Kind.JOB:
            return _telling(snapshots.saved if asked.get("save") is True else self._result)
        url = _value(asked, "url", str)
        if kind == Kind.READ:
            number = None if asked.get("number") is None else _number(asked)
            exact = asked.get("exact") is True
            return _telling(partial(snapshots.read, config, store, url, number, exact=exact))
        folder = _value(asked, "folder", str)
        if not _DATA_FOLDER.fullmatch(folder):
            raise FrameError(f"{folder!r} is no folder of a checkpoint")
        if kind == Kind.SAVE:
            shown = _value(asked, "shown", str)
            if self.repeating:  # the client will ask again, if it still waits
                return _telling(dict)
            return _telling(partial(snapshots.save, config, store, url, folder, shown))
        number = _number(asked)
        if self.repeating:  # its files were written, or are given up
            return _telling(snapshots.stop)
        snapshots.check(config, number)
        return _telling(partial(snapshots.write, config, number, url, folder))

    def _result(self) -> Mapping[str, Any]:
        """Tell how far a job is; once a reading has failed, the rows that it had read are let go."""
        if self._snapshots.spoilt():
            self.store.clear()
            self.emptied = True
        return self._snapshots.result()

    def forget(self, gone: Callable[[int], bool]) -> None:
        """See `Handler.forget`: an export or a cut keeps rows as they were."""
        for client in filter(gone, list(self._exports)):
            del self._exports[client]
        self._present = set(filterfalse(gone, self._present))
        if gone(self._cutter):
            self._snapshots.let_go()

    @property
    def loaded(self) -> int:
        """Rows that have been read from snapshots, also of one that is being read; any thread may ask."""
        return self._snapshots.loaded

    def load(self, chunk: Chunk) -> None:
        """Load rows of the snapshot after which requests are to be repeated."""
        self.store.load(chunk.table, chunk)
        self._snapshots.loaded += len(chunk.ids)

    def settle(self, stopping: Callable[[], bool]) -> None:
        """Wait until rows that are being read are there, or until `stopping` returns True.

        Raises:
            CheckpointError: they cannot be read.
        """
        assert self.config is not None
        while not (result := self._snapshots.result())["done"]:
            if stopping():
                return
            time.sleep(SETTLE_SECONDS)
        if "error" in result:
            raise error_of(result["error"], f"shard {self.config.shard}")

    def _greet(self, session: Session, hello: dict[str, Any]) -> Work:
        asked, worker = ShardConfig.from_dict(hello), Worker.from_dict(hello)
        if session.client in self._forward:
            raise StoreError("a second hello of the same client")
        if self.config is None:
            return Work(partial(self._welcome, session, worker, asked))
        if worker.id.run != self.run:
            if self._present and not self.repeating:
                raise _held(self.run, worker.id.run, len(self._present))
            return Work(partial(self._welcome, session, worker, asked), renews=True)
        if difference := self.config.difference(asked):
            raise ConfigError(
                f"the shard is configured differently: {difference}",
                why="all workers of a shard must agree on its tables",
                fix="use the same recipe everywhere, or restart the shards",
            )
        if worker.id.generation < self.generation:
            raise ConfigError(f"generation {self.generation} of the workers is here already")
        if worker.id.generation > self.generation + MISSED:
            raise ConfigError(
                f"generation {worker.id.generation} of the workers cannot follow {self.generation}",
                why="the launcher counts them one by one, and a newer one makes an end of all before it",
            )
        if worker.id.generation == self.generation:
            return Work(partial(self._welcome, session, worker, None))
        return Work(partial(self._welcome, session, worker, asked), renews=True)

    def _welcome(self, session: Session, worker: Worker, anew: ShardConfig | None) -> list[Buffer]:
        """Take a worker in; `anew`: with it the shard starts anew, without anything there was before."""
        if anew is not None:
            if self.config is not None and not self.config.difference(anew):
                self.close()  # it gives the memory back that the new store takes
            store = anew.open()
            self.close()
            self.config, self._store, self._updates = anew, store, 0
            self.run, self.generation = worker.id.run, worker.id.generation
            self.board, self._snapshots = StepBoard(), Snapshots()
            self._exports.clear()
            self._forward.clear()
            self._present.clear()
        self._forward[session.client] = worker.forward
        self._present.add(session.client)
        session.rank, session.gated = worker.id.rank, worker.gated
        member = member_of(session)
        member.ordered, member.generation = worker.ordered, self.generation
        if session.gated:
            self.board.join(worker.id.rank, worker.id.world)
        groups = [{"index": g.index, "tables": g.tables, "dim": g.dim} for g in self.store.groups]
        about = {"groups": groups, "completed": self.board.completed, "tier": self.store.ahead.useful}
        return [pack_text(about | {"message_bytes": self.max_bytes})]

    def _lookup(self, session: Session, header: Header, sections: Sequence[Section]) -> Work:
        code = self._forward[session.client]
        self._check(sections, ITEM[code])
        if header.kind == Kind.LOOKUP:
            check_lookups(self.store, ((s.group, s.ids, s.splits) for s in sections if s.ids is not None))
        return Work(partial(self._look_up, session, header, sections, code))

    def _look_up(
        self, session: Session, header: Header, sections: Sequence[Section], code: int
    ) -> list[Buffer]:
        create = header.kind == Kind.LOOKUP
        if member_of(session).ordered and create:
            self.board.look(session.rank, header.step)
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

    def _update(self, session: Session, header: Header, sections: Sequence[Section]) -> Work:
        self._check(sections, 0)
        rates = [self.store.groups[s.group].optimizer.lr for s in sections]
        if not abs(header.lr_scale) * max(rates, default=1.0) <= _LARGEST:
            raise StoreError(f"lr_scale must be finite, also times the learning rate, got {header.lr_scale}")
        sizes = [s.count * s.dim for s in sections]
        whole = np.empty(sum(sizes), np.float32) if session.gated else self._buffer(sum(sizes), 1)
        pieces = np.split(whole.reshape(-1), np.cumsum(sizes)[:-1]) if sizes else []
        share = Share([_gradients(s, p) for s, p in zip(sections, pieces, strict=True)], header.lr_scale)
        self._check_gradients(share)
        return _silent(partial(self._push if session.gated else self._apply_own, session, header, share))

    def _check_gradients(self, share: Share) -> None:
        """Refuse all groups if one cannot be applied."""
        self.store.check_gradients([u.group for u in share.updates], [u.gradients for u in share.updates])

    def _apply_own(self, session: Session, _: Header, share: Share) -> None:
        self._apply(share)
        member_of(session).updates += 1
        self._updates += 1

    def _push(self, session: Session, header: Header, share: Share) -> None:
        """Add a share to the open step of `sync`; the last one completes it."""
        shares = self.board.offer(session.rank, header.step, share)
        member = member_of(session)
        member.updates, member.open_step = member.updates + 1, header.step
        if shares is not None:
            self._updates += len(shares)
            merged = Share(merge(shares), shares[0].lr_scale)
            self._check_gradients(merged)  # finite numbers may have a sum that is not
            self._apply(merged)

    def _apply(self, share: Share) -> None:
        for u in share.updates:
            self.store.update_group(
                u.group, u.ids, u.splits, u.gradients, lr_scale=share.lr_scale, checked=True
            )

    def _sections(self, parts: Sequence[Buffer]) -> list[Section]:
        """Return the sections of a message, at most one per table group."""
        return unpack(parts, most=len(self.store.groups))

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

    def _check_chunk(self, chunk: Chunk) -> None:
        """Refuse rows of another width or type than those of their table."""
        group, rows = self.store.groups[self.store.group_of(chunk.table)[0]], len(chunk.ids)
        check_rows(chunk.weights, rows, group.dim, "weights")
        check_rows(chunk.state, rows, group.plan.width, "state")
        plain(chunk.ids, np.uint64, 1, "ids")

    def _buffer(self, rows: int, dim: int) -> Rows:
        if len(self._scratch) < rows * dim:
            self._scratch = np.empty(rows * dim * 5 // 4, np.float32)
        return self._scratch[: rows * dim].reshape(rows, dim)

    def _export(self, session: Session, request: dict[str, Any]) -> Work:
        table = None
        if "table" in request:
            table = _value(request, "table", str)
            self.store.group_of(table)
        elif session.client not in self._exports:
            raise StoreError(
                "the export has ended, or was lost when the shard was restarted", fix="begin anew"
            )
        return Work(partial(self._next_chunk, session, table))

    def _next_chunk(self, session: Session, table: str | None) -> list[Buffer]:
        if table is not None:
            dim = self.store.groups[self.store.group_of(table)[0]].dim
            rows = min(EXPORT_ROWS, max(1, EXPORT_BYTES // (16 * dim)))
            self._exports[session.client] = self.store.export(table, chunk_rows=rows)
        chunk = next(self._exports[session.client], None)
        if chunk is None:
            self._exports.pop(session.client, None)
            return [pack_text({"end": True})]
        return pack_chunk(chunk)


def _held(run: str, other: str, clients: int) -> ConfigError:
    return ConfigError(
        f"the shard is held by run {run[:_SHOWN]!r}, this is a worker of run {other[:_SHOWN]!r}",
        why=f"two runs would write into each other's rows; {clients} of its workers have not said goodbye",
        fix="give all workers of one run the same `run`; wait for the other's end, or restart the shard",
    )


def _silent(act: Callable[[], object]) -> Work:
    """Return work whose answer is empty."""

    def run() -> list[Buffer]:
        act()
        return []

    return Work(run)


def _telling(act: Callable[[], Mapping[str, Any]]) -> Work:
    """Return work whose result is its answer."""
    return Work(lambda: pack_result(act()))


def _gradients(s: Section, out: npt.NDArray[np.float32]) -> GroupUpdate:
    assert s.ids is not None
    return GroupUpdate(s.group, s.ids, s.splits, from_wire(s, out.reshape(s.count, s.dim)))


def _value(asked: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = asked.get(name)
    if type(value) is not kind:
        raise FrameError(f"a request has an impossible {name}: {shortened(value)}")
    return value


def _number(asked: Mapping[str, Any], name: str = "number") -> int:
    """Return the number of a cut."""
    number = _value(asked, name, int)
    if not 0 <= number < MAX_NUMBER:
        raise FrameError(f"a request has an impossible {name}: {shortened(number)}")
    return number


def _cut_asked(asked: Mapping[str, Any]) -> Asked:
    delta = None if asked.get("delta") is None else _value(asked, "delta", bool)
    return Asked(_number(asked), delta, None if asked.get("since") is None else _number(asked, "since"))
