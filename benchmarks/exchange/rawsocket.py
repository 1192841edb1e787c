"""The limit: the same bytes, back and forth over a plain TCP socket, unread."""

from __future__ import annotations

import multiprocessing
import socket
import struct
from multiprocessing.connection import Connection

_SIZES = struct.Struct("<QQ")


def _receive(connection: socket.socket, buffer: memoryview) -> None:
    while len(buffer):
        got = connection.recv_into(buffer)
        if not got:
            raise EOFError
        buffer = buffer[got:]


def _serve(pipe: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, buffer = bytearray(_SIZES.size), bytearray(64 << 20)
        try:
            while True:
                _receive(connection, memoryview(head))
                incoming, outgoing = _SIZES.unpack(head)
                _receive(connection, memoryview(buffer)[:incoming])
                connection.sendall(memoryview(buffer)[:outgoing])
        except EOFError:
            pass


class RawSocket:
    """A client of a process that drops and returns bytes."""

    def __init__(self) -> None:
        mine, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs,), daemon=True
        )
        self._process.start()
        self._connection = socket.create_connection(("127.0.0.1", mine.recv()))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(64 << 20)

    def call(self, outgoing: int, incoming: int) -> None:
        """Send a number of bytes, wait for a number of bytes."""
        self._connection.sendall(_SIZES.pack(outgoing, incoming))
        self._connection.sendall(memoryview(self._buffer)[:outgoing])
        _receive(self._connection, memoryview(self._buffer)[:incoming])

    def close(self) -> None:
        self._connection.close()
        self._process.join(5)
