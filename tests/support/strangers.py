"""Connections to a shard that send whatever they like."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from satrap.exchange.servers import ShardServer
from satrap.exchange.servers.config import OWN_RUN, ShardConfig
from satrap.exchange.shard_map import ShardMap
from satrap.rpc.wire.frames import FAILURE, Header, MessageKind, decode, digest, encode
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store import StoreConfig
from tests.contract.parties import SEED, TABLES
from tests.rpc import plain


class Stranger:
    """A bare socket that sends what it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def send(self, *parts: bytes) -> None:
        plain.send(self.socket, parts)

    def ask(self, header: Header, parts: Sequence[bytes] = ()) -> tuple[Header, list[bytes]]:
        """Send a well-formed message; return the answer."""
        self.send(encode(header, digest(parts)), *(bytes(memoryview(p)) for p in parts))
        return self.receive()

    def receive(self) -> tuple[Header, list[bytes]]:
        header, *parts = plain.receive(self.socket)
        return decode(header, parts), parts

    def hello(self, **changes: object) -> tuple[Header, list[bytes]]:
        config = ShardConfig(TABLES, StoreConfig(SEED), 0, ShardMap(1)).to_dict()
        config |= {"forward": "float32", "rank": 0, "world": 1, "mode": "hybrid", "run": OWN_RUN} | changes
        return self.ask(Header(MessageKind.HELLO, epoch=1, client=77), [pack_text(config)])

    def refusal(self, header: Header, parts: Sequence[bytes] = ()) -> tuple[int, str]:
        answer, text = self.ask(header, parts)
        assert answer.kind == FAILURE
        content = unpack_text(text[0])
        return content["code"], content["what"]


@contextmanager
def stranger(server: ShardServer) -> Iterator[Stranger]:
    with plain.connect(server.address) as sock:
        yield Stranger(sock)
