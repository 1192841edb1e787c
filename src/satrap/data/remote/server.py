"""Data loader service: reads and batches rows for workers."""

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
from satrap.rpc.wire.frames import MAX_BYTES, Buffer, Header, MessageKind
from satrap.rpc.wire.text import LARGEST, MAX_WORLD, only, pack_text, shortened, unpack_text, whole
from satrap.schema import Schema

AHEAD = 4
"""Batches held ready for each worker; reading pauses at this number."""

FINGERPRINTS = 256
"""Maximum number of file fingerprints in a response."""

PATIENCE = 0.05
"""Seconds a response waits for a batch before it tells the worker to retry."""

Open = Callable[[str, Schema], Dataset | None]


@dataclass(slots=True)
class _ReadStream:
    """One epoch's batches for one worker, or the data's fingerprints, which also take a while."""

    data: Dataset
    epoch: int
    items: Prefetcher[Batch | list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """Streams open and batches ready now, batches and samples delivered, and the server's counters."""

    streams: int
    ready: int
    batches: int
    samples: int
    server: ServerStatistics


@dataclass(frozen=True, slots=True)
class _Asked:
    """A worker's request to open a stream; see `RemoteData`."""

    part: str
    schema: Schema
    epoch: int
    position: dict[str, Any] | None
    read: bool
    fingerprint: bool  # instead of the batches
    options: dict[str, Any]  # of `Dataset.with_options`

    @classmethod
    def from_dict(cls, text: Mapping[str, Any]) -> _Asked:
        """Parse the text of a request; `ConfigError` if it is incomplete or invalid."""
        try:
            schema = Schema.from_dict(text["schema"])
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"a worker requested an invalid schema: {error}") from error
        part, position = text.get("part"), text.get("position")
        if not isinstance(part, str) or not (position is None or isinstance(position, dict)):
            wrong = position if isinstance(part, str) else part
            raise ConfigError(f"a worker requested an invalid stream: {shortened(wrong)}")
        workers = whole(text, "workers", 1, MAX_WORLD)
        worker = whole(text, "worker", 0, workers - 1)
        epoch = whole(text, "epoch", 0, LARGEST)
        options = {"worker": worker, "workers": workers}
        if text.get("batch_size") is not None:
            options["batch_size"] = whole(text, "batch_size", 1, LARGEST)
        read, fingerprint = text.get("read") is not False, text.get("fingerprint") is True
        return cls(part, schema, epoch, position, read, fingerprint, options)


class LoaderService(SerialHandler):
    """Serves batches to workers.

    A worker opens a stream (`MessageKind.OPEN`: part, schema, shard, epoch, position) and requests one batch
    after another (`MessageKind.NEXT`). A thread per worker reads up to `AHEAD` batches ahead. Responses carry
    data errors, so users see them as if the worker had read the files itself. `open` is called with "train",
    "validation" or "test" and a schema, and returns that data set or None. `batches` and `samples` count
    deliveries.
    """

    role = "loader"
    kinds = (MessageKind.HELLO, MessageKind.OPEN, MessageKind.NEXT, MessageKind.BYE)
    board = Board()  # workers do not wait for each other

    def __init__(self, open: Open) -> None:
        self._open, self._streams = open, dict[int, _ReadStream]()
        self.batches, self.samples = 0, 0

    def close(self) -> None:
        """Stop reading."""
        for client in list(self._streams):
            self._end(client)

    def statistics(self) -> LoaderStatistics:
        """Return the counters; thread-safe."""
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
            case MessageKind.HELLO:
                if "tables" not in unpack_text(only(parts)):
                    return Work(lambda: [pack_text({"role": "loader"})])
            case MessageKind.OPEN:
                request = _Asked.from_dict(unpack_text(only(parts)))
                return Work(lambda: [pack_text(self._begin(session.client, request))])
            case MessageKind.NEXT:
                return Work(lambda: self._next(session.client))
            case MessageKind.BYE:
                return Work(lambda: self._end(session.client))
        raise ConfigError(
            "this server is a data loader, which holds no embedding rows", fix="give the address of a shard"
        )

    def forget(self, gone: Callable[[int], bool]) -> None:
        """See `Handler.forget`."""
        for client in filter(gone, list(self._streams)):
            self._end(client)

    def _begin(self, client: int, asked: _Asked) -> dict[str, Any]:
        self._end(client)
        try:
            dataset = self._open(asked.part, asked.schema)
            if dataset is None:
                return {"missing": True}
            data = dataset.with_options(**asked.options)
            rows = data.num_rows()
        except SatrapError as error:
            return {"error": error_values(error)}
        if asked.read:
            items = _fingerprint(data) if asked.fingerprint else data.batches(asked.epoch, asked.position)
            self._streams[client] = _ReadStream(data, asked.epoch, Prefetcher(items, AHEAD))
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
                what = f"a batch takes {size} bytes, but a message is limited to {MAX_BYTES}"
                raise ConfigError(what, fix="reduce data.batch_size")
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
    """Yield the data's fingerprints in parts that fit into a response."""
    fingerprints = data.fingerprint()
    for start in range(0, len(fingerprints), FINGERPRINTS):
        yield fingerprints[start : start + FINGERPRINTS]
