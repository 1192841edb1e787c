"""How an attacker reaches a process: the only part of the harness that knows the transport."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Sequence

from satrap.rpc import Key
from satrap.rpc.wire.frames import Header, digest, encode

SECONDS = 5.0


def frame(parts: Sequence[bytes], *, count: int | None = None, sizes: Sequence[int] | None = None) -> bytes:
    """Return a message as it lies in the stream; with `count` or `sizes`, one that says it has others."""
    told = [len(part) for part in parts] if sizes is None else sizes
    prefix = struct.pack("<4sHH", b"SATR", 1, len(parts) if count is None else count)
    return prefix + struct.pack(f"<{len(told)}Q", *told) + b"".join(parts)


def message(header: Header, parts: Sequence[bytes] = ()) -> bytes:
    """Return a message whose checks are right."""
    return frame([encode(header, digest(parts)), *parts])


class Link:
    """One connection of an attacker.

    Args:
        address: HOST:PORT.
        key: of the cluster, or a wrong one; None: in the open.
        window: bytes that the system receives unread; default the system's.

    Raises:
        OSError: refused.
    """

    def __init__(self, address: str, key: Key | None = None, *, window: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.socket()
        self.socket: socket.socket = plain
        if window is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        plain.settimeout(SECONDS)
        try:
            plain.connect((host, int(port)))
            if key is not None:
                self.socket = secured = key.protect(plain, server=False)
                secured.do_handshake()
        except OSError:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        """Send bytes; what comes back meanwhile is thrown away.

        Raises:
            OSError: the connection has ended, or nothing of it was taken for some seconds.
        """
        self.socket.sendall(data)

    def drain(self) -> None:
        """Throw away what came."""
        self.socket.settimeout(0.0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while self.socket.recv(1 << 16):
                pass
        self.socket.settimeout(SECONDS)

    def receive(self) -> list[bytes]:
        """Return the next message.

        Raises:
            OSError: none came.
        """
        _, _, count = struct.unpack("<4sHH", self._exactly(8))
        return [self._exactly(size) for size in struct.unpack(f"<{count}Q", self._exactly(8 * count))]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            got = self.socket.recv(min(size - len(data), 1 << 20))
            if not got:
                raise ConnectionError("closed")
            data += got
        return bytes(data)

    def abort(self) -> None:
        """End the connection at once, with a reset."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.socket.close()
