"""A handler that adds numbers: `python -m tests.rpc.server.adder HOST:PORT` serves it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from satrap.errors import ConfigError
from satrap.rpc.server.handler import Board, SerialHandler, Work
from satrap.rpc.server.process import serve
from satrap.rpc.server.server import Server
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import Buffer, Header, MessageKind
from satrap.rpc.wire.text import only, pack_text, unpack_text


class Adder(SerialHandler):
    """UPDATE adds a number and answers the sum; EXPORT fails as a mistake does."""

    role = "adder"
    kinds = (MessageKind.HELLO, MessageKind.UPDATE, MessageKind.EXPORT, MessageKind.BYE)
    board = Board()

    def __init__(self) -> None:
        self.total, self.closed = 0, False

    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        match header.kind:
            case MessageKind.HELLO | MessageKind.BYE:
                return Work(list)
            case MessageKind.UPDATE:
                number = unpack_text(only(parts))["number"]
                return Work(lambda: self._add(number))
            case MessageKind.EXPORT:
                return Work(lambda: [bytes(1 // 0)])
        raise ConfigError("this only adds")

    def _add(self, number: int) -> list[Buffer]:
        self.total += number
        return [pack_text({"total": self.total})]

    def close(self) -> None:
        self.closed = True


if __name__ == "__main__":
    serve(Server(sys.argv[1], Adder()))
