"""The work of a loader process: it reads and batches rows for workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satrap.batch import Batch
from satrap.data.dataset import Dataset
from satrap.data.prefetch import Prefetcher
from satrap.errors import ConfigError, SatrapError, error_values
from satrap.rpc.server.handler import Board, SerialHandler, Work
from satrap.rpc.server.session import Session
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.wire.batches import pack_batch
from satrap.rpc.wire.frames import MAX_BYTES, Buffer, Header, Kind
from satrap.rpc.wire.text import LARGEST, MAX_WORLD, only, pack_text, shortened, unpack_text, whole
from satrap.schema import Schema

AHEAD = 4
"""Batches held ready for each worker; reading pauses when it has so many."""

FINGERPRINTS = 256
"""Most fingerprints of files in an answer."""

PATIENCE = 0.05
"""Seconds that an answer waits for a batch; then it tells the worker to ask again."""

Open = Callable[[str, Schema], Dataset | None]


@dataclass(slots=True)
class _Stream:
    """One pass over the data, for one worker, or its fingerprint, which takes a while, too."""

    data: Dataset
    epoch: int
    items: Prefetcher[Batch | list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """Passes open and batches ready now, batches and samples handed out, and its server's counters."""

    streams: int
    ready: int
    batches: int
    samples: int
    server: ServerStatistics


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pass that a worker asks for; see `RemoteData`."""

    part: str
    schema: Schema
    epoch: int
    position: dict[str, Any] | None
    read: bool
    fingerprint: bool  # in place of the batches
    options: dict[str, Any]  # of `Dataset.with_options`

    @classmethod
    def from_dict(cls, text: Mapping[str, Any]) -> _Asked:
        """Build it from the text of a request; `ConfigError` if something is missing or impossible."""
        try:
            schema = Schema.from_dict(text["schema"])
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"a worker asks for an impossible schema: {error}") from error
        part, position = text.get("part"), text.get("position")
        if not isinstance(part, str) or not (position is None or isinstance(position, dict)):
            wrong = position if isinstance(part, str) else part
            raise ConfigError(f"a worker asks for an impossible pass: {shortened(wrong)}")
        workers = whole(text, "workers", 1, MAX_WORLD)
        worker = whole(text, "worker", 0, workers - 1)
        epoch = whole(text, "epoch", 0, LARGEST)
        options = {"worker": worker, "workers": workers}
        if text.get("batch_size") is not None:
            options["batch_size"] = whole(text, "batch_size", 1, LARGEST)
        read, fingerprint = text.get("read") is not False, text.get("fingerprint") is True
        return cls(part, schema, epoch, position, read, fingerprint, options)


class LoaderService(SerialHandler):
    """Answers the requests of workers for batches.

    A worker opens a pass (`Kind.OPEN`: part, schema, share, epoch, position) and asks for one batch after
    another (`Kind.NEXT`). A thread per worker reads up to `AHEAD` batches ahead. Errors in the data travel in
    answers, so the user sees them as if the worker had read the files itself. `open` is given "train",
    "validation" or "test" and a schema, and returns that data set or None. `batches` and `samples` count what
    was handed out.
    """

    role = "loader"
    kinds = (Kind.HELLO, Kind.OPEN, Kind.NEXT, Kind.BYE)
    board = Board()  # nobody waits for anybody

    def __init__(self, open: Open) -> None:
        self._open, self._streams = open, dict[int, _Stream]()
        self.batches, self.samples = 0, 0

    def close(self) -> None:
        """Stop reading."""
        for client in list(self._streams):
            self._end(client)

    def statistics(self) -> LoaderStatistics:
        """Return its counters; any thread may call it."""
        streams = list(self._streams.values())
        return LoaderStatistics(
            streams=len(streams),
            ready=sum(stream.items.ready for stream in streams),
            batches=self.batches,
            samples=self.samples,
            server=self.observe(),
        )

    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """See `SerialHandler.prepare`."""
        match header.kind:
            case Kind.HELLO:
                if "tables" not in unpack_text(only(parts)):
                    return Work(lambda: [pack_text({"role": "loader"})])
            case Kind.OPEN:
                asked = _Asked.from_dict(unpack_text(only(parts)))
                return Work(lambda: [pack_text(self._begin(session.client, asked))])
            case Kind.NEXT:
                return Work(lambda: self._next(session.client))
            case Kind.BYE:
                return Work(lambda: self._end(session.client))
        raise ConfigError("this is a loader: it holds no rows", fix="give the address of a shard")

    def forget(self, gone: Callable[[int], bool]) -> None:
        """See `Handler.forget`."""
        for client in filter(gone, list(self._streams)):
            self._end(client)

    def _begin(self, client: int, asked: _Asked) -> dict[str, Any]:
        self._end(client)
        try:
            found = self._open(asked.part, asked.schema)
            if found is None:
                return {"missing": True}
            data = found.with_options(**asked.options)
            rows = data.num_rows()
        except SatrapError as error:
            return {"error": error_values(error)}
        if asked.read:
            items = _fingerprint(data) if asked.fingerprint else data.batches(asked.epoch, asked.position)
            self._streams[client] = _Stream(data, asked.epoch, Prefetcher(items, AHEAD))
        return {"rows": rows}

    def _next(self, client: int) -> list[Buffer]:
        stream = self._streams.get(client)
        if stream is None:
            return [pack_text({"end": True})]
        try:
            batch = stream.items.take(PATIENCE)
            if batch is None:
                return [pack_text({"wait": True})]
            if isinstance(batch, list):
                return [pack_text({"fingerprint": batch})]
            parts = pack_batch(batch, {"progress": stream.data.progress(batch.position, stream.epoch)})
            if (size := sum(memoryview(part).nbytes for part in parts)) > MAX_BYTES:
                what = f"a batch takes {size} bytes, the limit of a message is {MAX_BYTES}"
                raise ConfigError(what, fix="set data.batch_size lower")
        except StopIteration:
            self._end(client)
            return [pack_text({"end": True})]
        except SatrapError as error:
            self._end(client)
            return [pack_text({"error": error_values(error)})]
        except BaseException:
            self._end(client)
            raise
        self.batches, self.samples = self.batches + 1, self.samples + batch.size
        return parts

    def _end(self, client: int) -> list[Buffer]:
        stream = self._streams.pop(client, None)
        if stream is not None:
            stream.items.close()
        return []


def _fingerprint(data: Dataset) -> Iterator[list[dict[str, Any]]]:
    """Yield what tells whether data is still the same, in parts that fit into answers."""
    found = data.fingerprint()
    for start in range(0, len(found), FINGERPRINTS):
        yield found[start : start + FINGERPRINTS]
