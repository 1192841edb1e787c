"""A shard's part of a snapshot: the cut of its rows, written or read by a thread beside the requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from satrap import errors
from satrap.errors import CheckpointError, SatrapError, StoreError
from satrap.exchange.servers.config import ShardConfig
from satrap.faults import hit
from satrap.store import Chunk, Shard

Result = dict[str, Any]


class Snapshots:
    """Holds one cut and runs one job at a time; the jobs' results are asked for.

    A job that goes wrong says so and changes nothing that anybody relies on: files without a manifest are no
    part of a snapshot, and rows that were only half read belong to a run that does not begin.
    """

    def __init__(self) -> None:
        self._cut: Iterator[Chunk] | None = None
        self._number = 0
        self._job: _Job | None = None

    def cut(self, store: Shard, number: int) -> None:
        """Take a cut of all rows under a number; the one before is let go."""
        self._cut, self._number = store.snapshot(), number

    def write(self, config: ShardConfig, number: int, url: str, folder: str) -> None:
        """Write a cut, once.

        Raises:
            StoreError: there is no cut of that number.
        """
        if self._cut is None or number != self._number:
            raise StoreError(
                f"shard {config.shard} has no cut {number}",
                why="it was restarted, or a newer cut has taken its place",
                fix="take another snapshot",
            )
        chunks, self._cut = self._cut, None
        self._start(lambda stopping: _write(config, _until(chunks, stopping), url, folder))

    def read(self, config: ShardConfig, store: Shard, url: str) -> None:
        """Load the rows of this shard's buckets from a checkpoint."""
        self._start(lambda stopping: _read(config, store, url, stopping))

    def _start(self, work: Callable[[threading.Event], Result]) -> None:
        self.stop()
        self._job = _Job(work)

    def result(self) -> Result:
        """Return `{"done": False}`, or what the job returned, or `{"done": True, "error": ...}`.

        Raises:
            StoreError: there is no job.
        """
        if self._job is None:
            raise StoreError(
                "the shard is neither writing nor reading a snapshot", why="it was restarted meanwhile"
            )
        return self._job.result

    def stop(self) -> None:
        """Let the cut go, and have a running job end as soon as it can."""
        self._cut = None
        if self._job is not None:
            self._job.stopping.set()
            self._job = None


class _Job:
    def __init__(self, work: Callable[[threading.Event], Result]) -> None:
        self.stopping = threading.Event()
        self.result: Result = {"done": False}
        self._work = work
        threading.Thread(target=self._run, name="satrap-shard-snapshot", daemon=True).start()

    def _run(self) -> None:
        error: SatrapError = CheckpointError("the shard could not write or read its rows")
        try:
            self.result = {"done": True, **self._work(self.stopping)}
            return
        except SatrapError as told:
            error = told
        except (OSError, MemoryError) as failed:
            error = CheckpointError(f"the shard could not write or read its rows: {failed}")
        finally:
            if not self.result["done"]:
                self.result = {"done": True, "error": _plain(error)}


def _until(chunks: Iterator[Chunk], stopping: threading.Event) -> Iterator[Chunk]:
    for chunk in chunks:
        if stopping.is_set():
            raise StoreError("a newer request has taken the place of this one")
        hit("shard.chunk")
        yield chunk


def _write(config: ShardConfig, chunks: Iterator[Chunk], url: str, folder: str) -> Result:
    from satrap.checkpoint.parts import write_tables
    from satrap.checkpoint.storage import Storage

    tables, buckets = [str(table["name"]) for table in config.tables], config.map.buckets(config.shard)
    suffix = f".shard-{config.shard:04d}"
    files = write_tables(Storage(url), folder, chunks, tables, suffix=suffix, buckets=buckets)
    hit("shard.written")
    return {"files": {name: asdict(entry) for name, entry in files.items()}}


def _read(config: ShardConfig, store: Shard, url: str, stopping: threading.Event) -> Result:
    from satrap.checkpoint.chain import read_buckets

    rows = 0
    for chunk in _until(read_buckets(url, config.map.buckets(config.shard)), stopping):
        store.load(chunk.table, chunk)
        rows += len(chunk.ids)
    return {"rows": rows}


def _plain(error: SatrapError) -> dict[str, str]:
    values = {key: str(getattr(error, key)) for key in ("what", "where", "why", "fix")}
    return {"type": type(error).__name__, **values}


def error_of(plain: Mapping[str, str], shard: str) -> SatrapError:
    """Return the error that a job's result carries.

    Args:
        plain: `result["error"]`.
        shard: name of the shard, for an error that names no place.
    """
    kind = getattr(errors, plain["type"], CheckpointError)
    error: SatrapError = kind(
        plain["what"], where=plain["where"] or shard, why=plain["why"], fix=plain["fix"]
    )
    return error
