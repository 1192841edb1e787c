"""Who may talk to a shard: loopback by default, holders of one secret key otherwise.

The key is a CURVE secret (Curve25519, as CurveZMQ defines it). Every role of a cluster reads the same file:
it proves to the other side that it holds the key, and all traffic is encrypted. Whoever lacks it is refused
before any message is read.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import stat
from pathlib import Path

import zmq
from zmq.utils import z85

from satrap.errors import ConfigError

_DOMAIN = b"satrap"
_LENGTH = 40


class Key:
    """The secret of a cluster. Its text never appears in `repr`, errors or logs.

    Args:
        secret: 40 characters of Z85.
    """

    __slots__ = ("_public", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._public = zmq.curve_public(secret)

    def __repr__(self) -> str:
        return "Key(...)"

    def protect_server(self, socket: zmq.Socket[bytes]) -> None:
        """Make a listening socket accept encrypted connections of key holders only."""
        socket.curve_server = True
        socket.curve_secretkey = self._secret
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    def protect_client(self, socket: zmq.Socket[bytes]) -> None:
        """Make a connecting socket prove that it holds the key, and demand the same of the server."""
        socket.curve_serverkey = self._public
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret

    def matches(self, public: bytes) -> bool:
        """Whether 32 bytes are the public half of this key."""
        return hmac.compare_digest(public, z85.decode(self._public))


class Door:
    """Decides, for one context, which connections are let in (ZAP, ZeroMQ RFC 27).

    Args:
        context: of the protected sockets.
        key: what a client must hold.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: Key) -> None:
        self._key, self.refused = key, 0
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer one question of the library."""
        version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
        good = mechanism == b"CURVE" and len(credentials) == 1 and self._key.matches(credentials[0])
        self.refused += not good
        status, text = (b"200", b"") if good else (b"400", b"wrong key")
        self.socket.send_multipart([version, request, status, text, b"", b""])


def create_key(path: Path) -> None:
    """Write a new secret key to a new file that only its owner can read.

    Raises:
        ConfigError: the file exists or cannot be written.
    """
    _, secret = zmq.curve_keypair()
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create the key file: {error.strerror}", where=str(path)) from error
    with os.fdopen(file, "wb") as stream:
        stream.write(secret + b"\n")


def read_key(path: Path) -> Key:
    """Read a key that `create_key` wrote.

    Raises:
        ConfigError: missing, readable by others, or no key.
    """
    try:
        with open(path, "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise ConfigError(
                    f"the key file can be used by others: its mode is {stat.S_IMODE(mode):04o}",
                    where=str(path),
                    why="whoever reads the key can read and change the model",
                    fix=f"chmod 600 {path}, and make a new key if others could have seen it",
                )
            secret = stream.read(_LENGTH + 3).strip()
    except OSError as error:
        raise ConfigError(f"cannot read the key file: {error.strerror}", where=str(path)) from error
    try:
        if len(secret) != _LENGTH:
            raise ValueError
        return Key(secret)
    except (ValueError, KeyError, zmq.ZMQError):
        raise ConfigError(
            "the key file holds no key: one line of 40 characters", where=str(path), fix="create a new one"
        ) from None


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT or [IPv6]:PORT.

    Raises:
        ConfigError: it is neither.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no HOST:PORT", fix="write, for example, 127.0.0.1:5000")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bindable(host: str) -> str:
    """Return a host as ZeroMQ binds it: IPv6 in brackets, `localhost` as the address it stands for."""
    return f"[{host}]" if ":" in host else "127.0.0.1" if host == "localhost" else host


def check_listen(listen: str, key: Key | None) -> None:
    """Refuse an address that others can reach, unless there is a key.

    Raises:
        ConfigError: see above.
    """
    host, _ = split_address(listen)
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"to listen on {listen} needs a key",
            why="anyone who reaches the port could read and change the model",
            fix="give a key file, or listen on 127.0.0.1",
        )
