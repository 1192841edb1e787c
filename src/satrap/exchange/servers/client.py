"""The exchange of a worker whose rows live in shard servers."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.exchange.protocol import Cut, Request, Rows, Snapshot, TableGroup
from satrap.exchange.servers.calls import Lookup, merge_statistics
from satrap.exchange.servers.chunks import pack_chunk, unpack_chunk
from satrap.exchange.servers.config import ShardConfig, WorkerId, tables_to_dicts
from satrap.exchange.servers.sections import ITEM, Section, pack
from satrap.exchange.servers.shard_map import ShardMap
from satrap.exchange.servers.snapshots import error_of, unpack_result
from satrap.exchange.servers.split import Part, Splitter
from satrap.exchange.servers.wire import CODES, Wire, gather_gradients, scale_of
from satrap.exchange.states import largest
from satrap.exchange.traffic import Seen, Traffic
from satrap.rpc import is_loopback, split_address
from satrap.rpc.client.call import Call, told
from satrap.rpc.client.client import ClientOptions
from satrap.rpc.client.peer import OnAnswer, Peer
from satrap.rpc.wire.frames import Buffer, Kind
from satrap.rpc.wire.text import pack_hello, pack_text
from satrap.schema import Table
from satrap.store import Chunk, StoreConfig
from satrap.store.types import check_rows

if TYPE_CHECKING:
    from satrap.checkpoint.storage import FileEntry, Storage

LOAD_BYTES = 32 << 20
"""Rows of a chunk are sent to the shards in pieces of about this size."""

JOB_SECONDS = 0.02
"""Between two looks at what shards do in the background."""

IN_FLIGHT = 64
"""Lookups and updates a caller may have open; one more waits for the oldest."""


class ServersExchange:
    """Lookups and updates on shard servers, each of which owns a part of every table.

    ```python
    exchange = ServersExchange(["127.0.0.1:5000", "127.0.0.1:5001"], tables, store=StoreConfig(seed=2))
    ```

    Requests are split by bucket, sent to all shards at once and answered in the order issued, as `Exchange`
    promises. With `Wire("float32", "float32")` the rows are those of a `LocalExchange` to the bit, for any
    number of shards. If a connection breaks, it is made again and what was lost is sent again; every update
    is applied exactly once. A shard that does not answer within the deadline ends the exchange with an
    `ExchangeError` that names it.

    Args:
        addresses: HOST:PORT per shard; the order is the shards' numbers and must be the same for all workers.
        tables: the tables, each with an optimizer.
        store: how rows start and how many are kept. Its memory and the size of its tier are for all shards
            together; the tier's folder is on their machines. The memory of its admission is for each shard.
        wire: number formats, default float16 rows and bfloat16 gradients.
        mode: "hybrid" (default): updates are applied as they arrive. "sync": the shards sum the gradients of
            all ranks of a step and take one optimizer step; every rank must then issue one update per step
            (an empty one if it has no batch), and lookups wait for the steps before them.
        ordered: in "sync", lookups of a step are served in the order of ranks, so that rows that go, and ids
            that are admitted by chance, do not depend on which worker is faster. Every rank must then issue
            one lookup per step (an empty one if it has no batch). Default False.
        worker: which worker of which run this is. Gradients are multiplied by 1 / world.
        epoch: of the shard map, default 1.
        options: key, deadline and heartbeat; see `ClientOptions`.

    Raises:
        ConfigError: impossible arguments, or shards that are configured for something else.
        ExchangeError: a shard cannot be reached or refuses the key.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tables: Sequence[Table],
        *,
        store: StoreConfig = StoreConfig(),
        wire: Wire = Wire(),
        mode: str = "hybrid",
        ordered: bool = False,
        worker: WorkerId = WorkerId(),
        epoch: int = 1,
        options: ClientOptions = ClientOptions(),
    ) -> None:
        _check(addresses, mode, options)
        self.wire, self.map = wire, ShardMap(len(addresses), epoch=epoch)
        self._deadline, self._world = options.deadline, worker.world
        self._error: SatrapError | None = None
        self._ended: SatrapError | None = None
        self._traffic = Traffic()
        self._calls: set[Call[Any]] = set()
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        self._step, self._closed, self._refused = 0, False, 0
        self._since: int | None = None
        client = secrets.randbits(63) + 1
        peers = [
            Peer(
                f"shard {s} at {a}",
                client=client,
                epoch=epoch,
                deadline=options.deadline,
                heartbeat=options.heartbeat,
            )
            for s, a in enumerate(addresses)
        ]
        plain, part = tables_to_dicts(tables), store.part(len(addresses))
        about = {"forward": wire.forward, "mode": mode, "ordered": ordered, **asdict(worker)}
        hellos = [ShardConfig(plain, part, s, self.map).to_dict() | about for s in range(len(addresses))]
        self._loop = options.network(peers, addresses, key=options.key, on_end=self._end)
        try:
            self._greet(hellos)
        except SatrapError:
            self._shut()
            raise

    def _greet(self, hellos: Sequence[Mapping[str, Any]]) -> None:
        greetings = [[pack_hello(hello)] for hello in hellos]
        answers = [told(parts) for parts in self._all(Kind.HELLO, greetings)]
        first = answers[0]
        if any((a["groups"], a["completed"]) != (first["groups"], first["completed"]) for a in answers):
            raise ExchangeError(
                "the shards disagree on how many steps are complete",
                fix="restart all shards, or restore all from one snapshot",
            )
        self._step = int(first["completed"])
        self._groups = [TableGroup(g["index"], tuple(g["tables"]), g["dim"]) for g in first["groups"]]
        self._splitter = Splitter(self._groups, self.map)
        for peer, answer in zip(self._loop.peers, answers, strict=True):
            peer.message_bytes = answer["message_bytes"]
        self._tiered = [s for s, answer in enumerate(answers) if answer.get("tier")]

    @property
    def groups(self) -> Sequence[TableGroup]:
        """The table groups of the shards."""
        return self._groups

    def lookup(self, requests: Sequence[Request], *, create: bool) -> Future[list[Rows]]:
        """See `Exchange.lookup`. The future raises `ExchangeError` when a shard does not answer in time."""
        call: Call[list[Rows]] = self._call(limited=True)
        call.future.add_done_callback(self._traffic.issue("lookup"))
        self._loop.post(partial(self._send_lookup, list(requests), create, call, self._step))
        return call.future

    def prefetch(self, requests: Sequence[Request]) -> None:
        """See `Exchange.prefetch`; ids are sent ahead to the shards that have a tier, and may be lost."""
        if self._tiered:
            self._loop.post(partial(self._send_ahead, list(requests)))

    def update(
        self, requests: Sequence[Request], gradients: Sequence[Rows], *, lr_scale: float, finite: bool = False
    ) -> None:
        """See `Exchange.update`. Shards look at what arrives, whatever the caller says."""
        self._raise_error()
        call: Call[None] = self._call(limited=True)
        call.future.add_done_callback(self._note)
        call.future.add_done_callback(self._traffic.issue("push", requests))
        step, self._step = self._step, self._step + 1
        pairs = list(zip(requests, gradients, strict=True))
        self._loop.post(partial(self._send_update, pairs, lr_scale, call, step))

    def flush(self) -> None:
        """See `Exchange.flush`."""
        self._all(Kind.FLUSH)
        self._raise_error()

    def snapshot(self) -> Snapshot:
        """See `Exchange.snapshot`; rows of a table come in order of (bucket, id), as from one store."""
        return Snapshot(self._chunks(), self._write)

    def _chunks(self) -> Iterator[tuple[str, Chunk]]:
        self.flush()
        for group in self._groups:
            for table in group.tables:
                for shard in range(self.map.shards):
                    for chunk in self._export(shard, table):
                        yield table, chunk

    def _export(self, shard: int, table: str) -> Iterator[Chunk]:
        coming = self._one(shard, Kind.EXPORT, [pack_text({"table": table})])
        while len(parts := coming.result()) > 1:
            coming = self._one(shard, Kind.EXPORT, [pack_text({})])
            yield unpack_chunk(parts)

    def cut(self, *, delta: bool | None = None) -> Cut:
        """See `Exchange.cut`. Each shard writes its own rows, all at the same time.

        A shard gives changes only since the cut that this client had before: one that was restarted gives
        all its rows, and then all shards do.
        """
        self.flush()
        number, answers = self._cut_all(delta)
        if len({text["full"] for text in answers}) > 1:
            number, answers = self._cut_all(False)
        full = all(text["full"] for text in answers)
        counts = largest(text["counts"] for text in answers)
        before = self._since
        if delta is not None:
            self._since = number
        from satrap.checkpoint.storage import FileEntry

        def put_back() -> None:
            self._since = None  # until all shards have done it
            self._each(Kind.PUT_BACK, {"number": number})
            self._since = None if full else before

        def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
            place = {"number": number, "url": storage.absolute, "folder": folder}
            results = self._jobs(Kind.WRITE, place)
            return {name: FileEntry(**entry) for r in results for name, entry in r["files"].items()}

        return Cut(counts, write, None if full else {}, put_back)

    def _write(self, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """Have each shard write its own rows, all at the same time; return the files.

        Shards that do not see the folder, being on other machines, send all rows here. One that comes back
        from its journal meanwhile is asked once more.
        """
        from satrap.checkpoint.parts import write_tables
        from satrap.checkpoint.storage import FileEntry

        self.flush()
        shown = next(iter(storage.names(folder)), "")
        asked = {"url": storage.absolute, "folder": folder, "shown": shown}
        self._each(Kind.SAVE, asked)
        results = self._raise_first([self._saved(shard, asked) for shard in range(self.map.shards)])
        files = {name: entry for r in results for name, entry in (r["files"] or {}).items()}
        if all(r["files"] is not None for r in results):
            return {name: FileEntry(**entry) for name, entry in files.items()}
        for name in files:
            storage.remove(f"{folder}/{name}")
        tables = [table for group in self._groups for table in group.tables]
        return write_tables(storage, folder, (chunk for _, chunk in self._chunks()), tables)

    def _saved(self, shard: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until a shard has written its rows, or tells why not."""
        while True:
            result = unpack_result(self._one(shard, Kind.JOB, [pack_text({"save": True})]).result())
            if result["done"]:
                return result
            if result.get("lost"):
                self._one(shard, Kind.SAVE, [pack_text(asked)]).result()
            time.sleep(JOB_SECONDS)

    def _cut_all(self, delta: bool | None) -> tuple[int, list[dict[str, Any]]]:
        """Return (number of a cut, what each shard said to it)."""
        number = secrets.randbits(48)
        answers = self._each(Kind.CUT, {"number": number, "delta": delta, "since": self._since})
        return number, [told(parts) for parts in answers]

    def read(self, url: str, *, follow: bool = False, exact: bool = False) -> None:
        """See `Exchange.read`. Each shard reads the rows of its own buckets, whoever wrote them."""
        from satrap.checkpoint.storage import Storage

        number = secrets.randbits(48) if follow else None
        self._jobs(Kind.READ, {"url": Storage(url).absolute, "number": number, "exact": exact})
        self._since = number

    def load(self, table: str, chunk: Chunk) -> None:
        """See `Exchange.load`."""
        shards = self._splitter.shards_of(table, chunk.ids)
        row = chunk.weights.nbytes + chunk.state.nbytes + chunk.ids.nbytes
        pieces = max(1, -(-row // LOAD_BYTES))
        waiting: list[Future[Sequence[Buffer]]] = []
        for shard in range(self.map.shards):
            for rows in np.array_split(np.flatnonzero(shards == shard), pieces):
                if len(rows):
                    waiting.append(self._one(shard, Kind.LOAD, pack_chunk(_take(table, chunk, rows))))
        for future in waiting:
            future.result()

    def clear(self) -> None:
        """See `Exchange.clear`."""
        self._all(Kind.CLEAR)

    def statistics(self) -> Mapping[str, Any]:
        """Return the sums over the shards of `satrap.store.Shard.statistics`, and what this client saw.

        Besides: `server`, sums of the servers' own counters (`malformed` messages, requests `repeated`,
        `queued`, ...); `shards`, the statistics of each; `exchange`, with payload bytes `sent` and `received`
        by this client, requests `resent`, and requests `waiting` for an answer; see `traffic`.
        """
        answers = [told(parts) for parts in self._all(Kind.STATISTICS)]
        merged = merge_statistics(answers)
        merged["refused"] += self._refused
        merged["exchange"] = self.traffic()
        return merged

    def traffic(self) -> Mapping[str, Any]:
        """See `Exchange.traffic`."""
        return {
            **self._traffic.report(),
            "sent": self._loop.sent_bytes,
            "received": self._loop.received_bytes,
            "resent": sum(p.resent for p in self._loop.peers),
            "waiting": sum(p.waiting for p in self._loop.peers),
        }

    def close(self) -> None:
        """See `Exchange.close`. Closing twice is fine."""
        if self._closed:
            return
        try:
            if self._ended is None:
                self._all(Kind.BYE)
        finally:
            self._closed = True
            self._shut()

    # -- calls, from the caller's thread

    def _call(self, *, limited: bool = False) -> Call[Any]:
        if self._closed:
            raise ExchangeError("the exchange is closed")
        if limited and not self._room.acquire(timeout=2 * self._deadline):
            raise self._ended or ExchangeError(f"nothing was answered for {2 * self._deadline:g} s")
        call: Call[Any] = Call()
        self._calls.add(call)
        call.future.add_done_callback(partial(self._done, call, limited))
        if self._ended is not None:
            call.fail(self._ended)
        return call

    def _done(self, call: Call[Any], limited: bool, _: Future[Any]) -> None:
        self._calls.discard(call)
        if limited:
            self._room.release()

    def _one(self, shard: int, kind: Kind, parts: Sequence[Buffer] = ()) -> Future[Sequence[Buffer]]:
        call: Call[Sequence[Buffer]] = self._call()
        step = self._step
        self._loop.post(lambda: self._ask(shard, kind, parts, call.answer, step))
        return call.future

    def _all(self, kind: Kind, parts: Sequence[Sequence[Buffer]] | None = None) -> list[Sequence[Buffer]]:
        shards = range(self.map.shards)
        return [self._loop.wait(f) for f in [self._one(s, kind, parts[s] if parts else ()) for s in shards]]

    def _each(self, kind: Kind, text: Mapping[str, Any]) -> list[Sequence[Buffer]]:
        return self._all(kind, [[pack_text(text)]] * self.map.shards)

    def _jobs(self, kind: Kind, text: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Have all shards do something that takes long; wait for all, then raise what went wrong."""
        self._each(kind, text)
        results: list[dict[str, Any]] = []
        while len(results) < self.map.shards:
            shard = len(results)
            result = unpack_result(self._one(shard, Kind.JOB, [pack_text({})]).result())
            if result["done"]:
                results.append(result)
            else:
                time.sleep(JOB_SECONDS)
        return self._raise_first(results)

    def _raise_first(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what the jobs of all shards came to, if none went wrong."""
        for shard, result in enumerate(results):
            if "error" in result:
                raise error_of(result["error"], self._loop.peers[shard].name)
        return results

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _note(self, future: Future[None]) -> None:
        error = future.exception()
        if isinstance(error, SatrapError) and self._error is None:
            self._error = error

    def _shut(self) -> None:
        self._loop.stop()

    # -- in the loop's thread

    def _ask(
        self,
        shard: int,
        kind: Kind,
        parts: Sequence[Buffer],
        on_answer: Callable[[Sequence[Buffer], SatrapError | None], None],
        step: int,
        lr_scale: float = 1.0,
    ) -> None:
        now = self._loop.clock()
        self._loop.peers[shard].request(kind, parts, on_answer, now=now, step=step, lr_scale=lr_scale)

    def _send_ahead(self, requests: Sequence[Request]) -> None:
        with contextlib.suppress(StoreError):  # what is wrong with it is said when it is looked up
            splits = [(r.group, self._splitter.split(r)) for r in requests]
            for shard in self._tiered:
                sections = [Section(group, s[shard].splits, s[shard].ids) for group, s in splits]
                if any(section.count for section in sections):
                    self._loop.peers[shard].hint(Kind.PREFETCH, pack(sections))

    def _send_lookup(
        self, requests: Sequence[Request], create: bool, call: Call[list[Rows]], step: int
    ) -> None:
        try:
            splits = [self._splitter.split(r) for r in requests]
        except StoreError as error:
            call.fail(error)
            return
        kind = Kind.LOOKUP if create else Kind.PEEK
        if refusal := self._too_large(kind, requests, splits):
            call.fail(refusal)
            return
        lookup = Lookup(call, requests, splits, self._groups, self.map.shards)
        for shard in range(self.map.shards):
            sections = [
                Section(r.group, s[shard].splits, s[shard].ids) for r, s in zip(requests, splits, strict=True)
            ]
            on_answer: OnAnswer = partial(lookup.answer, shard)
            if create:
                on_answer = self._measured(self._traffic.looked_up, requests, shard, on_answer)
            self._ask(shard, kind, pack(sections), on_answer, step)

    def _send_update(
        self, pairs: Sequence[tuple[Request, Rows]], lr_scale: float, call: Call[None], step: int
    ) -> None:
        if self._error is not None:  # as a refused update stops those behind it
            call.fail(self._error)
            return
        try:
            messages = self._encode_update(pairs)
        except StoreError as error:
            self._refused += 1
            call.fail(error)
            return
        packed = [pack(sections) for sections in messages]
        for peer, parts in zip(self._loop.peers, packed, strict=True):
            if refusal := peer.refusal(Kind.UPDATE, sum(memoryview(part).nbytes for part in parts)):
                self._refused += 1
                call.fail(refusal)  # before any shard has its part
                return
        call.expect(len(packed))
        requests = [request for request, _ in pairs]
        for shard, parts in enumerate(packed):
            on_answer = self._measured(self._traffic.applied, requests, shard, call.count)
            self._ask(shard, Kind.UPDATE, parts, on_answer, step, lr_scale)

    def _too_large(
        self, kind: Kind, requests: Sequence[Request], splits: Sequence[Sequence[Part]]
    ) -> StoreError | None:
        """Return the error for a lookup that a shard's message cannot answer."""
        item = ITEM[CODES[self.wire.forward]]
        widths = [self._groups[request.group].dim * item for request in requests]
        for shard, peer in enumerate(self._loop.peers):
            size = sum(len(s[shard].ids) * width for s, width in zip(splits, widths, strict=True))
            if refusal := peer.refusal(kind, size, answer=True):
                return refusal
        return None

    def _measured(
        self,
        note: Callable[[Sequence[Request], int, Seen], None],
        requests: Sequence[Request],
        shard: int,
        then: OnAnswer,
    ) -> OnAnswer:
        """Take note of what the shard had applied before it served a request, then go on with its answer."""

        def answered(parts: Sequence[Buffer], error: SatrapError | None) -> None:
            if error is None:
                note(requests, shard, self._loop.peers[shard].seen)
            then(parts, error)

        return answered

    def _encode_update(self, pairs: Sequence[tuple[Request, Rows]]) -> list[list[Section]]:
        """Return the sections for each shard; nothing is sent before all gradients are known to be finite."""
        code = CODES[self.wire.backward]
        messages: list[list[Section]] = [[] for _ in range(self.map.shards)]
        for request, gradients in pairs:
            parts = self._splitter.split(request)
            group = self._groups[request.group]
            gradients = check_rows(gradients, len(request.ids), group.dim, "gradients")
            scale = scale_of(gradients, code)
            for message, part in zip(messages, parts, strict=True):
                rows, finite = gather_gradients(gradients, part.positions, code, scale / self._world)
                if not finite:
                    raise StoreError(
                        "the gradients hold NaN or infinite values",
                        where=f"update of {len(request.ids)} rows of {', '.join(group.tables)}",
                        why="they would destroy the rows; the whole update was refused",
                        fix="lower the learning rate or clip gradients",
                    )
                message.append(Section(request.group, part.splits, part.ids, code, group.dim, scale, rows))
        return messages

    def _end(self, error: SatrapError | None) -> None:
        self._ended = error or ExchangeError("the exchange is closed")
        if error is not None and self._error is None:
            self._error = error
        for call in list(self._calls):
            call.fail(self._ended)


def _take(table: str, chunk: Chunk, rows: np.ndarray[Any, Any]) -> Chunk:
    columns = {f.name: getattr(chunk, f.name) for f in fields(chunk) if f.name != "table"}
    return Chunk(table=table, **{name: column[rows] for name, column in columns.items()})


def _check(addresses: Sequence[str], mode: str, options: ClientOptions) -> None:
    if mode not in ("sync", "hybrid"):
        raise ConfigError(f"mode {mode!r} is unknown", fix="use sync or hybrid")
    if not options.deadline > 0:
        raise ConfigError(f"the deadline must be > 0 seconds, got {options.deadline}")
    if not addresses or len(set(addresses)) != len(addresses):
        raise ConfigError(f"addresses must name each shard once, got {list(addresses)}")
    for address in addresses:
        host, _ = split_address(address)
        if options.key is None and not is_loopback(host):
            raise ConfigError(
                f"shard {address} is on another machine: a key is needed",
                why="without one, rows and gradients travel in the open and anyone may change them",
                fix="give the cluster's key file",
            )
