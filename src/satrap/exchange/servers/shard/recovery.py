"""Restores a shard from its journal: rows, sessions and open steps, to the bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from satrap.errors import CheckpointError, SatrapError
from satrap.exchange.lookup import LookupRequest
from satrap.exchange.servers.shard.gradient_barrier import (
    WorkerGradients,
    WorkerState,
    member_of,
)
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.states import held_by
from satrap.rpc.server.handler import Job
from satrap.rpc.server.journal import Journal, JournalSegment
from satrap.rpc.server.session import Answer, Session
from satrap.rpc.server.sessions import Sessions
from satrap.rpc.server.turns import execute
from satrap.rpc.server.unexpected import answerable
from satrap.rpc.wire.frames import Buffer, Header, MessageKind, digest, encode
from satrap.rpc.wire.text import MAX_ANSWER, pack_arrays, unpack_arrays, unpack_text
from satrap.runtime.fault_points import hit

Load = Callable[[Service], None]

STATE = 0
"""Kind of the record that begins a segment after a cut."""


class Recovery:
    """Repeats the requests of a journal in their order; then keeps the journal short.

    The same code gives the same results: rows, optimizer states, counts of admission, rounding, the gradients
    of an open step of `sync`, and the responses that clients may request again.

    Args:
        journal: opened.
        service: the shard's service.
        load: loads the rows of the cut with which the journal begins; default: recovery starts from the
            newest committed snapshot after which a segment begins, or from the start of the run.

    Attributes:
        origin: starting point of the recovery, as text.
        updates: number of updates to repeat.
        done: records repeated so far.

    Raises:
        CheckpointError: the journal does not reach back to this origin.
    """

    def __init__(self, journal: Journal, service: Service, load: Load | None = None) -> None:
        step, self.origin, url = (journal.segments[0].step, "given rows", None) if load else _start(journal)
        self._load = load or (partial(self._read, url) if url else None)
        self.journal, self._service, self._segments = journal, service, journal.since(step)
        self.updates = sum(segment.kinds[MessageKind.UPDATE] for segment in self._segments)
        self.done, self.active = 0, any(segment.records for segment in self._segments)
        self._stopping: Callable[[], bool] = lambda: False
        self._thread: threading.Thread | None = None
        self._committed: int | None = None

    def __str__(self) -> str:
        return f"{self.origin} + journal ({self.updates} updates)"

    def progress(self) -> int | None:
        """Return the number of records repeated plus rows read from snapshots, None once all are."""
        return self.done + self._service.loaded if self.active else None

    def recover(self, sessions: Sessions, stopping: Callable[[], bool] = lambda: False) -> None:
        """See `Durability.recover`; a damaged or unrepeatable record raises a `CheckpointError`."""
        self._service.repeating, self._stopping = True, stopping
        for segment in self._segments:
            for number, (header, parts) in enumerate(self.journal.read(segment), segment.first):
                if stopping():
                    return
                try:
                    with answerable("recovery", begun=True):
                        self._repeat(header, parts, sessions)
                except SatrapError as error:
                    raise _unrepeatable(self.journal, segment, number, header, error) from error
                self.done += 1
        self._service.repeating = self.active = False

    def _repeat(self, header: Header, parts: Sequence[Buffer], sessions: Sessions) -> None:
        if header.kind == STATE:
            if self.done == 0:
                restore(parts, self._service, sessions, self._load)
            return
        if header.kind == MessageKind.BYE and header.client not in sessions.known:
            return  # a late goodbye from the previous generation, whose hello is in no journal any more
        job = Job(sessions.recovered(header), header, parts, 0, 0.0)
        sessions.finished(job, execute(self._service, job))
        if header.kind == MessageKind.READ:
            self._service.settle(self._stopping)

    def _read(self, url: str, service: Service) -> None:
        """Load the rows of a snapshot, or some of them if recovery is stopped."""
        from satrap.checkpoint.chain import read_buckets

        assert service.config is not None
        held = held_by(service.store, service.config.map.buckets(service.config.shard))
        for chunk in read_buckets(url, held):
            if self._stopping():
                return
            hit("shard.chunk")
            service.load(chunk)

    def executed(self, job: Job, sessions: Sessions) -> None:
        """See `Durability.executed`: a segment of the journal begins at each cut for a snapshot.

        One also begins when a failed load has emptied the shard: repeated, the load might succeed.
        """
        service = self._service
        if job.header.kind == MessageKind.CUT and unpack_text(job.parts[0]).get("feed") is None:
            before = [segment for segment in self.journal.segments if segment.step is not None]
            try:
                number = unpack_text(job.parts[0])["number"]
                self.journal.rotate(number, *remember(service, sessions))
            finally:
                self._look(before)
        elif service.emptied:
            service.emptied = False
            self.journal.begin(*remember(service, sessions))

    def tidy(self) -> None:
        """Delete the journal before the cut of the last snapshot that is known to be committed."""
        if self._committed is not None:
            self.journal.forget(self._committed)
            self._committed = None

    def _look(self, segments: Sequence[JournalSegment]) -> None:
        """Find the committed snapshot in a thread: an object store may take long to answer."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._find, args=(segments,), daemon=True)
            with suppress(RuntimeError):  # no more threads: try again after the next cut
                self._thread.start()

    def _find(self, segments: Sequence[JournalSegment]) -> None:
        with suppress(SatrapError, OSError):  # a journal that cannot be read is kept
            self._committed = next((s.step for s in reversed(segments) if committed(self.journal, s)), None)


def _start(journal: Journal) -> tuple[int | None, str, str | None]:
    """Return the cut to start from, its name as text, and the snapshot with its rows."""
    for segment in reversed(journal.segments):
        if url := committed(journal, segment):
            return segment.step, f"snapshot {url.rpartition('/')[2]}", url
    return None, "the start of the run", None


def committed(journal: Journal, segment: JournalSegment) -> str | None:
    """Return the URL of the snapshot at whose cut a segment begins; None unless it is committed."""
    from satrap.checkpoint.files.storage import Storage
    from satrap.checkpoint.manifest import read_manifest

    if segment.step is None:
        return None
    for _, parts in journal.read(segment, MessageKind.WRITE):
        request = unpack_text(parts[0])
        if request["number"] == segment.step:
            # a snapshot that cannot be read does not count; object stores raise their own errors
            with suppress(SatrapError), answerable("looking for a snapshot", begun=False):
                if read_manifest(Storage(request["url"])).data == request["folder"]:
                    return str(request["url"])
    return None


def _unrepeatable(
    journal: Journal, segment: JournalSegment, number: int, header: Header, error: SatrapError
) -> CheckpointError:
    kind = "the state at a snapshot" if header.kind == STATE else MessageKind(header.kind).name
    reason = f" ({error.where})" if error.where else ""
    return CheckpointError(
        f"the journal cannot be repeated: {error.what}{reason}",
        where=f"{segment.path}, record {number}: {kind}",
        why="without the journal the shard cannot restore its state, and a restart would fail the same way",
        fix=f"repair the journal, or remove {journal.folder} and resume from a snapshot: "
        "satrap train --resume",
    )


def remember(service: Service, sessions: Sessions) -> tuple[bytes, list[Buffer]]:
    """Return the state of a shard besides its rows, as the head and parts of a record.

    Call it in the thread that executes requests, between two of them.
    """
    arrays: dict[str, Any] = {f"store.{k}": v for k, v in service.state().items()}
    board, shares, sessions_data = service.board, [], []
    for rank, share in board.shares.items():
        for i, (r, gradients) in enumerate(zip(share.requests, share.gradients, strict=True)):
            columns = {"ids": r.ids, "splits": r.splits, "gradients": gradients}
            arrays |= {f"share{rank}.{i}.{name}": column for name, column in columns.items()}
        groups = [r.group for r in share.requests]
        shares.append({"rank": rank, "groups": groups, "lr_scale": share.lr_scale})
    for session in sessions.known.values():
        plain, answers = session.remember()
        for number, answer in enumerate(answers):
            for part, data in enumerate(answer.parts):
                arrays[f"answer{session.client}.{number}.{part}"] = np.frombuffer(data, np.uint8)
        sessions_data.append(plain | asdict(member_of(session)))
    steps = {"world": board.world, "completed": board.completed, "shares": shares}
    steps["looked"] = sorted(board.looked)
    about = {"service": service.remember(), "board": steps, "sessions": sessions_data}
    text, *raw = pack_arrays(arrays, about)
    parts: list[Buffer] = [text, b"".join(raw)]  # joined, since a message has few parts
    return encode(Header(STATE), digest(parts)), parts


def restore(parts: Sequence[Buffer], service: Service, sessions: Sessions, load: Load | None) -> None:
    """Restore the state that `remember` returned, and load the rows."""
    text = unpack_text(parts[0], most=MAX_ANSWER)  # it may name hundreds of thousands of arrays
    sizes = (math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in text["arrays"].values())
    raw, ends = memoryview(parts[1]), accumulate(sizes, initial=0)
    views = unpack_arrays(text, [raw[a:b] for a, b in pairwise(ends)])
    arrays = {name: array.copy() for name, array in views.items()}
    state = {k.removeprefix("store."): v for k, v in arrays.items() if k.startswith("store.")}
    service.resume(text["service"], state, load)
    board, steps = service.board, text["board"]
    board.world, board.completed, board.looked = steps["world"], steps["completed"], set(steps["looked"])
    for share in steps["shares"]:
        requests, gradients = [], []
        for i, group in enumerate(share["groups"]):
            prefix = f"share{share['rank']}.{i}."
            requests.append(LookupRequest(group, arrays[f"{prefix}ids"], arrays[f"{prefix}splits"]))
            gradients.append(arrays[f"{prefix}gradients"])
        board.shares[share["rank"]] = WorkerGradients(requests, gradients, share["lr_scale"])
    for plain in text["sessions"]:
        session = Session(plain["client"], None)
        answers = [
            Answer.of(
                Header(*header), [arrays[f"answer{session.client}.{i}.{part}"] for part in range(count)]
            )
            for i, (header, count) in enumerate(plain["answers"])
        ]
        session.resume(plain, answers)
        session.data = WorkerState(**{f.name: plain[f.name] for f in fields(WorkerState)})
        sessions.adopt(session)
