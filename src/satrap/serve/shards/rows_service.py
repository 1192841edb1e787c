"""Request handling of a serving shard, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from satrap.errors import ConfigError
from satrap.exchange.kernels import FLOAT32
from satrap.exchange.servers.shard.row_requests import read_sections, requests_of
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.telemetry import ShardStatistics
from satrap.exchange.wire.rows import row_section
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.server.handler import Board, SerialHandler, Work
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import MAX_BYTES, Buffer, FrameError, Header, MessageKind
from satrap.rpc.wire.text import only, pack_text, unpack_text
from satrap.serve.shards.kept_rows import RowVersions
from satrap.store.arrays import per_table
from satrap.store.statistics import merged

ID_BYTES = 256
"""Maximum length of a version id in a request."""


class RowsService(SerialHandler):
    """Answers score servers: PEEK returns rows of one version, STATISTICS lists the versions.

    A PEEK request has a version id, then ids in sections as in training. Its answer has the number of ids
    without a row per section and table, int64, then the rows in float32. A STATISTICS request names the
    version that its server holds, and its answer is `status`.

    Args:
        rows: the versions.
        map: maps rows to shards.
        shard: number of this shard.
        max_bytes: maximum size of an answer; larger ones are rejected before anything is allocated.
    """

    role = "serve-shard"
    kinds: Sequence[MessageKind] = (
        MessageKind.HELLO,
        MessageKind.PEEK,
        MessageKind.STATISTICS,
        MessageKind.BYE,
    )

    def __init__(self, rows: RowVersions, map: ShardMap, shard: int, *, max_bytes: int = MAX_BYTES) -> None:
        self.board = Board()
        self._rows, self._map, self._shard, self._max_bytes = rows, map, shard, max_bytes

    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """See `SerialHandler.prepare`."""
        match header.kind:
            case MessageKind.PEEK:
                return self._peek(parts)
            case MessageKind.STATISTICS:
                return self._tell(session, unpack_text(only(parts)))
            case MessageKind.HELLO:
                return self._greet(unpack_text(only(parts)))
            case MessageKind.BYE:
                return Work(partial(self._leave, session))
        raise FrameError(f"the request has the unknown kind {header.kind}")

    def _greet(self, hello: dict[str, Any]) -> Work:
        requested, here = (hello.get("shard"), hello.get("map")), (self._shard, self._map.to_dict())
        if requested != here:
            raise ConfigError(
                f"the request is for another shard, but this is shard {self._shard} of {self._map.shards}",
                why="each shard holds only the rows of its own number",
                fix="list all shards in the order of their numbers: --shards HOST:PORT,HOST:PORT",
            )
        return Work(lambda: [pack_text({"message_bytes": self._max_bytes})])

    def _tell(self, session: Session, asked: dict[str, Any]) -> Work:
        held = asked.get("holds")
        if not isinstance(held, str) or len(held) > ID_BYTES:
            raise FrameError(
                f"holds of a STATISTICS request is not a version id of up to {ID_BYTES} characters"
            )

        def tell() -> list[Buffer]:
            self._rows.hold(session.client, held)
            return [pack_text(self.status())]

        return Work(tell)

    def status(self) -> dict[str, Any]:
        """Return the versions, the table groups, and the newest version's rows by table and its bytes."""
        counters = self._rows.statistics()
        return {
            "versions": [[v.step, v.id, v.published] for v in self._rows.versions],
            "groups": [[list(group.tables), group.dim] for group in self._rows.store.groups],
            "rows": {name: table.rows for name, table in counters.tables.items()},
            "bytes": counters.bytes,
        }

    def _peek(self, parts: Sequence[Buffer]) -> Work:
        if not parts or memoryview(parts[0]).nbytes > ID_BYTES:
            raise FrameError(f"a PEEK request has no version id of at most {ID_BYTES} bytes")
        sections = read_sections(parts[1:], self._rows.store.groups, FLOAT32, self._max_bytes)
        return Work(partial(self._look_up, bytes(memoryview(parts[0])).decode("ascii", "replace"), sections))

    def _look_up(self, id: str, sections: Sequence[Section]) -> list[Buffer]:
        requests = requests_of(sections)
        unseen, answer = [np.empty(0, np.int64)], []
        for s, (rows, found) in zip(sections, self._rows.peek(id, requests), strict=True):
            unseen.append(per_table(np.flatnonzero(~found), s.splits))
            answer.append(row_section(s.group, rows, FLOAT32))
        return [np.concatenate(unseen).view(np.uint8), *pack(answer)]

    def _leave(self, session: Session) -> None:
        self._rows.forget(lambda client: client == session.client)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """See `Handler.forget`; called several times a second."""
        self._rows.forget(gone)
        self._rows.tidy()

    def statistics(self) -> ShardStatistics:
        """Return the shard's counters and the step of its newest version; any thread may call it."""
        return ShardStatistics(
            **merged([self._rows.statistics()]),
            shard=self._shard,
            steps=self._rows.newest.step,
            server=self.observe(),
        )

    def free(self) -> None:
        """Free the rows after the follower has stopped: at `close`, it may still be writing a version."""
        self._rows.close()
