"""A shard's part of a snapshot: a cut of its rows, written or read in a thread next to the requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from satrap import errors
from satrap.errors import CheckpointError, SatrapError, StoreError
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.states import CHUNK_ROWS, State, counts_of, held_by, load_rows, restore, state_of
from satrap.rpc.wire.frames import Buffer, FrameError
from satrap.rpc.wire.text import MAX_ANSWER, pack_arrays, pack_text, unpack_arrays, unpack_text
from satrap.runtime.fault_points import hit
from satrap.store import Delta, RowChunk, Shard
from satrap.store.snapshot.changes import Changes

if TYPE_CHECKING:
    from satrap.checkpoint.store_part import StorePart

Result = dict[str, Any]
Work = Callable[[threading.Event], Result]
"""A job's function; it ends early once the event is set."""


class ShardSnapshots:
    """Holds one cut and runs one job at a time; clients poll for the jobs' results.

    A failed job does no damage: files without a manifest are not part of a snapshot, and a run does not start
    with half of its rows.

    Args:
        changes: returns the record of changed rows of a store for this kind of cut.

    Attributes:
        since: number of the cut or load since which the store records changes; None: it records none.
        loaded: rows read so far, including a running job.
    """

    def __init__(self, changes: Callable[[Shard], Changes] = lambda store: store.changes) -> None:
        self._changes = changes
        self._part: StorePart | None = None
        self._number = 0
        self._job: _SnapshotJob | None = None
        self._reading: _SnapshotJob | None = None
        self._taken: tuple[int, int | None, Delta] | None = None
        self.since: int | None = None
        self.loaded = 0

    @property
    def followed(self) -> bool:
        """Whether the store records changes since the last cut."""
        return self.since is not None and self.since == self._number

    def cut(
        self,
        config: ShardConfig,
        store: Shard,
        number: int,
        *,
        delta: bool | None = None,
        since: int | None = None,
        feed: str | None = None,
        keep: bool = True,
    ) -> Result:
        """Take a cut, which replaces the last one; return whether it is `full`, and the store's `counts`.

        Args:
            config, store: of the shard.
            number: identifies the cut.
            delta: True: the changes since the cut `since` if it is known here, else all rows; False: all
                rows, and changes are recorded from now on; None: all rows.
            since: number of the client's last stored cut.
            feed: number format of weights, if only weights will be requested.
            keep: whether its rows will be requested.
        """
        if delta is None:
            cut = Delta(True, store.snapshot(), {})
        else:
            follows = since is not None and since == self.since
            cut = self._changes(store).take(full=not (delta and follows), chunk_rows=CHUNK_ROWS)
            before = None if cut.full else self.since
            self._taken = number, before, replace(cut, chunks=_until(iter(()), threading.Event()))
            self.since = number
        self._number = number
        state = state_of(store) if keep and feed is None else {}
        self._part = _part(config, cut, state, feed) if keep else None
        return {"full": cut.full, "counts": counts_of(store)}

    def put_back(self, store: Shard, number: int) -> None:
        """Drop a cut that could not be stored; the next cut will also include its changes."""
        if number == self._number:
            self.stop()
        if self._taken is not None and self._taken[0] == number:
            _, self.since, taken = self._taken
            self._changes(store).put_back(taken)
            self._taken = None

    def follow(self, store: Shard, number: int) -> None:
        """Record changes from now on; the store now holds the rows of cut `number`."""
        self._changes(store).follow()
        self.since = self._number = number

    def check(self, config: ShardConfig, number: int) -> None:
        """Raise a `StoreError` if there is no cut of this number to write."""
        if self._part is None or number != self._number:
            raise StoreError(
                f"shard {config.shard} has no cut {number}",
                why="the shard was restarted, or a newer cut has replaced this one",
                fix="take another snapshot",
            )

    def write(self, url: str, folder: str) -> None:
        """Start to write the cut, which can be done once."""
        assert self._part is not None
        self._start(partial(_write, self._part, url, folder))

    def save(self, config: ShardConfig, store: Shard, url: str, folder: str, shown: str) -> None:
        """Start to write all present rows, without a state to continue from.

        Nothing is written unless this machine sees the file `shown` in the checkpoint's data folder; then the
        result's `files` are None.
        """
        cut = Delta(True, store.snapshot(chunk_rows=CHUNK_ROWS), {})
        self._start(partial(_save, _part(config, cut, {}), url, folder, shown))

    def read(
        self,
        config: ShardConfig,
        store: Shard,
        url: str,
        follow: Sequence[tuple[ShardSnapshots, int | None]],
        *,
        exact: bool = False,
    ) -> None:
        """Start to load the rows of this shard's buckets from a checkpoint.

        Args:
            config, store: of the shard.
            url: URL of the checkpoint.
            follow: which snapshots then record changes, as after a cut of this number (None: they do not),
                if the store has no other rows.
            exact: before the rows, restore the other state that the store needs to continue exactly.
        """
        buckets = config.map.buckets(config.shard)

        def counted(stopping: threading.Event) -> Iterator[RowChunk]:
            from satrap.checkpoint.chain import read_buckets

            for chunk in _until(read_buckets(url, held_by(store, buckets)), stopping):
                yield chunk
                self.loaded += len(chunk.ids)

        def work(stopping: threading.Event) -> Result:
            if exact:
                restore(store, url, buckets)
            rows, alone = load_rows(store, counted(stopping))
            for snapshots, number in follow:
                if alone and number is not None:
                    snapshots.follow(store, number)
            return {"rows": rows}

        self._start(work)
        self._reading = self._job

    def spoilt(self) -> bool:
        """Return, once, whether a load has failed and left some rows in the store."""
        failed = self._reading is not None and "error" in self._reading.result
        if failed:
            self._reading = None
        return failed

    def result(self) -> Result:
        """Return `{"done": False}`, or the job's result, or `{"done": True, "error": ...}`.

        `{"done": False, "lost": True}`: the process that started the job has ended.
        """
        return {"done": False, "lost": True} if self._job is None else self._job.result

    def let_go(self) -> None:
        """Drop the cut, which will not be requested any more; running jobs continue."""
        self._part = None

    def stop(self) -> None:
        """Drop the cut, and stop a running job as soon as possible."""
        self._part = None
        if self._job is not None:
            self._job.stopping.set()
            self._job = self._reading = None

    def _start(self, work: Work) -> None:
        self.stop()
        self._job = _SnapshotJob(work)


class Cuts(NamedTuple):
    """The cuts of a shard: for snapshots, for a feed, and of rows that do not change until they are written.

    `snapshots` also loads rows.
    """

    snapshots: ShardSnapshots
    feed: ShardSnapshots
    still: ShardSnapshots

    @classmethod
    def new(cls) -> Cuts:
        """Return the cuts of a new shard."""
        return cls(ShardSnapshots(), ShardSnapshots(lambda store: store.weight_changes), ShardSnapshots())

    def of(self, asked: Mapping[str, Any]) -> ShardSnapshots:
        """Return the snapshots that a request is about."""
        if asked["save"]:
            return self.still
        return self.snapshots if asked["feed"] is None else self.feed


class _SnapshotJob:
    def __init__(self, work: Work) -> None:
        self.stopping = threading.Event()
        self.result: Result = {"done": False}
        self._work = work
        threading.Thread(target=self._run, name="satrap-shard-snapshot", daemon=True).start()

    def _run(self) -> None:
        work = self._work
        del self._work  # a finished job must not hold rows
        try:
            self.result = {"done": True, **work(self.stopping)}
        except SatrapError as error:
            self.result = {"done": True, "error": errors.error_values(error)}
        except BaseException as error:  # noqa: BLE001 - the thread ends, and its client must get the error
            message = f"the shard could not write or read its rows: {type(error).__name__}: {error}"
            self.result = {"done": True, "error": errors.error_values(CheckpointError(message))}


def _until(chunks: Iterable[RowChunk], stopping: threading.Event) -> Generator[RowChunk, None, None]:
    for chunk in chunks:
        if stopping.is_set():
            raise StoreError("a newer request has replaced this one")
        hit("shard.chunk")
        yield chunk


def _part(config: ShardConfig, cut: Delta, state: State, feed: str | None = None) -> StorePart:
    from satrap.checkpoint.store_part import StorePart

    return StorePart(
        cut.chunks,
        [table.name for table in config.tables],
        state,
        None if cut.full else cut.deleted,
        suffix=f".shard-{config.shard:04d}",
        buckets=config.map.buckets(config.shard),
        weights=feed,
    )


def _write(part: StorePart, url: str, folder: str, stopping: threading.Event) -> Result:
    from satrap.checkpoint.files.storage import Storage

    storage = Storage(url)
    with storage.together():
        files = replace(part, chunks=_until(part.chunks, stopping)).write(storage, folder)
    hit("shard.written")
    return {"files": {name: asdict(entry) for name, entry in files.items()}}


def _save(part: StorePart, url: str, folder: str, shown: str, stopping: threading.Event) -> Result:
    from satrap.checkpoint.files.storage import Storage

    try:
        seen = Storage(url).exists(f"{folder}/{shown}")
    except (OSError, CheckpointError):
        seen = False
    try:
        return _write(part, url, folder, stopping) if seen else {"files": None}
    except PermissionError:
        return {"files": None}


def pack_result(result: Mapping[str, Any]) -> list[Buffer]:
    """Return the parts for the result of a job.

    The checksums of files, one per MiB, are a separate part, 4 bytes each: so one message can carry the
    checksums of a shard of any size.
    """
    files = result.get("files")
    if not files:
        return [pack_text(result)]
    plain = {name: {**entry, "crc32": len(entry["crc32"])} for name, entry in files.items()}
    sums = np.array([value for entry in files.values() for value in entry["crc32"]], "<u4")
    return pack_arrays({"crc32": sums}, {**result, "files": plain})


def unpack_result(parts: Sequence[Buffer]) -> Result:
    """Return the result that `pack_result` packed; raise a `FrameError` if the parts do not fit."""
    result = unpack_text(parts[0], most=MAX_ANSWER) if parts else {}
    arrays = unpack_arrays({"arrays": result.pop("arrays", {})}, parts[1:])
    sums = arrays.get("crc32", np.empty(0, "<u4"))
    files = (result.get("files") or {}).values()
    if len(sums) != sum(entry["crc32"] for entry in files):
        raise FrameError("a result does not have the checksums that it announces")
    at = 0
    for entry in files:
        count = entry["crc32"]
        entry["crc32"], at = sums[at : at + count].tolist(), at + count
    return result


def error_of(plain: Mapping[str, str], shard: str) -> SatrapError:
    """Return the error in a job's result; without a place of its own, it names `shard`."""
    return errors.error_of({**plain, "where": plain["where"] or shard})
