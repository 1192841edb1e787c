"""Messages over a blocking socket, written from the layout's description, not with the code under test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence


def connect(address: str) -> socket.socket:
    """Return a connected socket; it gives up after 5 seconds without an answer."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5)


def encode(parts: Sequence[bytes]) -> bytes:
    """Return the bytes of a message."""
    sizes = b"".join(struct.pack("<Q", len(part)) for part in parts)
    return b"SATR" + struct.pack("<HH", 1, len(parts)) + sizes + b"".join(parts)


def send(sock: socket.socket, parts: Sequence[bytes]) -> None:
    """Send a message."""
    sock.sendall(encode([bytes(memoryview(part)) for part in parts]))


def receive(sock: socket.socket) -> list[bytes]:
    """Return the next message.

    Raises:
        OSError: the connection has ended, or nothing came in time.
    """
    magic, version, count = struct.unpack("<4sHH", _exactly(sock, 8))
    assert (magic, version) == (b"SATR", 1)
    sizes = struct.unpack(f"<{count}Q", _exactly(sock, 8 * count))
    return [_exactly(sock, size) for size in sizes]


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        got = sock.recv(min(size - len(data), 1 << 20))
        if not got:
            raise ConnectionError("closed")
        data += got
    return bytes(data)
