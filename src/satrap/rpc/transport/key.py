"""The secret of a cluster, and the encrypted connections made with it.

The key is a text of 40 characters. From it every role derives the same private key (Ed25519) and the same
certificate. Connections are TLS 1.3: both sides present that certificate, prove that they hold its private
key, and trust no other. A client without the secret is rejected before any message is read.
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile

from satrap.errors import ConfigError

_BYTES = 30
_LENGTH = 40
_PURPOSE = b"satrap tls 1"
_FROM, _UNTIL = datetime(2000, 1, 1), datetime(9999, 12, 31)


class Key:
    """The secret of a cluster. Its text never appears in `repr`, errors or logs.

    A text that is not 40 characters of the URL-safe base 64 alphabet raises a `ValueError`.
    """

    __slots__ = ("_client", "_server")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _LENGTH or base64.urlsafe_b64encode(base64.urlsafe_b64decode(secret)) != secret:
            raise ValueError("not a valid key")
        identity = _identity(secret)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, *identity)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, *identity)

    def __repr__(self) -> str:
        return "Key(...)"

    def protect(self, sock: socket.socket, *, server: bool) -> ssl.SSLSocket:
        """Return an encrypted socket for a connected one; the caller performs the handshake."""
        return (self._server if server else self._client).wrap_socket(
            sock, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )


def _identity(secret: bytes) -> tuple[bytes, bytes]:
    """Return (certificate, private key) in PEM; the same for the same secret."""
    # these imports take a fifth of a second, which only users of a key need to spend
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509.oid import NameOID

    private = Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, _PURPOSE, "sha256"))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "satrap")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .sign(private, None)
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem), private.private_bytes(pem, *form)


def _context(protocol: int, certificate: bytes, private: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # any holder of the key is trusted, wherever it runs
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    with _file(certificate + private) as path:
        context.load_cert_chain(path)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Give bytes a path, in memory if possible: Python's `ssl` reads private keys only from paths."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("satrap"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


def create_key(path: Path) -> None:
    """Write a new key to a new file that only its owner can read.

    Raises:
        ConfigError: the file exists or cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create the key file: {error.strerror}", where=str(path)) from error
    with os.fdopen(file, "wb") as stream:
        stream.write(base64.urlsafe_b64encode(secrets.token_bytes(_BYTES)) + b"\n")


def read_key(path: Path) -> Key:
    """Read a key that `create_key` wrote.

    The file may be readable by its owner and its group, as Kubernetes mounts secrets for a group (`fsGroup`):
    mode 0600, 0400, 0640 or 0440. Links are followed.

    Raises:
        ConfigError: the file is missing, not a regular file, without a key, readable by others, or writable
            by its group or others.
    """
    try:
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as stream:
            mode = os.fstat(stream.fileno()).st_mode
            _check_mode(path, mode)
            secret = stream.read(_LENGTH + 3).strip()
    except OSError as error:
        raise ConfigError(f"cannot read the key file: {error.strerror}", where=str(path)) from error
    try:
        return Key(secret)
    except ValueError:
        raise ConfigError(
            "the key file has no key: one line of 40 characters", where=str(path), fix="create a new key file"
        ) from None


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError("the key file is not a regular file", where=str(path))
    if mode & (stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP):
        raise ConfigError(
            f"other users can access the key file: its mode is {stat.S_IMODE(mode):04o}",
            where=str(path),
            why="a user who can read or replace the key can read and change the model",
            fix=f"chmod 600 {path}, or 440 for a group; create a new key if others could have read it",
        )
