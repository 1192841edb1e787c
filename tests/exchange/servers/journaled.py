"""A shard without sockets that keeps a journal, fed with messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.shard.gradient_barrier import member_of
from satrap.exchange.servers.shard.recovery import Recovery, remember
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.sections import Section, pack
from satrap.optim import Adagrad, Adam
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.session import Answer
from satrap.rpc.server.sessions import Limits, Sessions
from satrap.rpc.server.turns import Turns
from satrap.rpc.wire.frames import FAILURE, Buffer, Header, MessageKind, digest, encode
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.schema import Table
from satrap.store import StoreConfig

TABLES = [
    Table("a", dim=4, optimizer=Adagrad(lr=0.1), dtype="bfloat16"),  # stochastic rounding
    Table("b", dim=8, optimizer=Adam(lr=0.1)),
]
DIMS = (4, 8)
ONE_ID = np.zeros(1, np.uint64)
ONE = np.array([0, 1], np.int64)
"""The splits of `ONE_ID`."""


class Bench:
    """Everything of a shard server but the socket and the thread, in one thread.

    Args:
        folder: of its journal; what it holds is recovered.
        loaded: chunks of the cut with which the journal begins.
    """

    def __init__(self, folder: Path, *, loaded: Any = None) -> None:
        self.journal = Journal(folder)
        self.service = Service()
        self.answers: list[Answer] = []
        self.sessions = Sessions(Limits(), lambda job: self.turns.take(job))
        self.turns = Turns(self.service, self._finished, self.sessions, self.journal)
        self.recovery = Recovery(
            self.journal, self.service, None if loaded is None else lambda s: load(s, loaded)
        )
        self.recovery.recover(self.sessions)

    def _finished(self, job: Any, answer: Answer) -> None:
        self.sessions.finished(job, answer)
        self.answers.append(answer)

    def send(self, header: Header, parts: Sequence[Buffer] = ()) -> Answer | None:
        """Deliver a message; return its answer if it has one now."""
        before = len(self.answers)
        head = encode(header, digest(parts))
        at_once = self.sessions.receive(b"", head, parts, 1.0)
        if at_once is not None:
            return at_once
        found = [a for a in self.answers[before:] if a.header.client == header.client]
        return found[-1] if found else None

    def rotate(self, step: int) -> None:
        self.journal.rotate(step, *remember(self.service, self.sessions))

    def rows(self) -> dict[str, list[bytes]]:
        """Everything a table holds, as bytes."""
        return {
            t.name: [c.ids.tobytes() + c.weights.tobytes() + c.state.tobytes() for c in self._export(t.name)]
            for t in TABLES
        }

    def _export(self, table: str) -> Any:
        return self.service.store.export(table)

    def everything(self) -> dict[str, Any]:
        """All that may not change by dying and coming back, as comparable values."""
        plain = []
        for session in self.sessions.known.values():
            known, answers = session.remember()
            contents = [[bytes(memoryview(p)) for p in a.parts] for a in answers]
            plain.append((known, asdict(member_of(session)), session.next, contents))
        board = self.service.board
        shares = {
            rank: [
                (r.group, r.ids.tobytes(), g.tobytes())
                for r, g in zip(share.requests, share.gradients, strict=True)
            ]
            for rank, share in board.shares.items()
        }
        state = {k: v.tobytes() for k, v in self.service.state().items()}
        return {
            "rows": self.rows() if self.service.config else {},
            "state": state,
            "sessions": plain,
            "board": (board.world, board.completed, shares),
            "service": self.service.remember(),
        }

    def die(self) -> None:
        """Give up the files as a killed process does."""
        self.journal.close()
        self.service.close()


def load(service: Service, chunks: Any) -> None:
    for chunk in chunks:
        service.store.load(chunk.table, chunk)


def hello(
    client: int,
    *,
    rank: int = 0,
    world: int = 1,
    mode: str = "hybrid",
    ordered: bool = False,
    **bounds: Any,
) -> tuple[Header, list[Buffer]]:
    config = ShardConfig(TABLES, StoreConfig(3, **bounds), 0, ShardMap(1))
    text = config.to_dict() | {"forward": "float16", "rank": rank, "world": world, "mode": mode}
    text["ordered"] = ordered
    return Header(MessageKind.HELLO, 1, client, 0), [pack_text(text)]


def sections(rng: np.random.Generator, *, gradients: bool) -> list[Buffer]:
    """Ids for both groups, with gradients if asked for."""
    made = []
    for group, dim in enumerate(DIMS):
        ids = rng.choice(60, int(rng.integers(0, 20)), replace=False).astype(np.uint64)
        splits = np.array([0, len(ids)], np.int64)
        if gradients:
            rows = rng.standard_normal((len(ids), dim)).astype(np.float32).view(np.uint8).reshape(-1)
            made.append(Section(group, splits, ids, CODES["float32"], dim, 1.0, rows))
        else:
            made.append(Section(group, splits, ids))
    return pack(made)


def traffic(rng: np.random.Generator, clients: int, count: int, *, sync: bool = False) -> list[Any]:
    """Messages of several clients, each in its order; in sync one update per client and step."""
    mode = "sync" if sync else "hybrid"
    messages = [hello(c + 1, rank=c, world=clients, mode=mode) for c in range(clients)]
    place, step = [1] * clients, [0] * clients
    for _ in range(count):
        c = int(rng.integers(clients))
        if sync and step[c] > min(step):
            c = step.index(min(step))
        kind = [MessageKind.LOOKUP, MessageKind.UPDATE, MessageKind.PEEK, MessageKind.FLUSH][
            int(rng.choice(4, p=[0.45, 0.45, 0.05, 0.05]))
        ]
        parts = [] if kind == MessageKind.FLUSH else sections(rng, gradients=kind == MessageKind.UPDATE)
        acknowledged = max(0, place[c] - int(rng.integers(1, 5)))
        scale = float(rng.choice([1.0, 0.5]))
        messages.append((Header(kind, 1, c + 1, place[c], acknowledged, step[c], scale), parts))
        place[c] += 1
        step[c] += sync and kind == MessageKind.UPDATE
    return messages


@contextmanager
def bench() -> Iterator[Bench]:
    with TemporaryDirectory() as folder:
        made = Bench(Path(folder))
        yield made
        made.die()


def text_of(answer: Answer) -> dict[str, Any]:
    return unpack_text(answer.parts[0])


def refused(bench: Bench, kind: MessageKind, parts: list[Any], **fields: Any) -> dict[str, Any]:
    """Send a request that is to be refused before anything is written; return the error."""
    session = bench.sessions.known.get(1)
    sequence = 0 if session is None else session.next
    before, size, updates = bench.everything()["rows"], bench.journal.size, bench.service.remember()
    answer = bench.send(Header(kind, 1, 1, sequence, sequence, **fields), parts)
    assert answer is not None
    assert answer.header.kind == FAILURE, text_of(answer)
    assert bench.journal.size == size
    assert bench.everything()["rows"] == before
    assert bench.service.remember() == updates
    return text_of(answer)


def gradients(rows: Any, group: int = 0, scale: float = 1.0) -> Section:
    raw = np.array([rows], np.float32)
    return Section(group, ONE, ONE_ID, CODES["float32"], raw.shape[1], scale, raw.view(np.uint8)[0])
