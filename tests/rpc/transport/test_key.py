"""Keys live in files that only their owner and group read, and prove who belongs to a cluster."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.rpc import Key, create_key, read_key


def test_a_new_key_is_private_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text().strip()
    key = read_key(path)
    assert secret not in repr(key)
    with pytest.raises(ConfigError, match="File exists"):
        create_key(path)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o620, 0o602, 0o650, 0o601, 0o444])
def test_a_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    create_key(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}"):
        read_key(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_key_may_be_mounted_for_a_group_behind_links(tmp_path: Path, mode: int) -> None:
    """As Kubernetes mounts a secret: `key -> ..data/key`, `..data -> ..2026_01_01/`, for the `fsGroup`."""
    (tmp_path / "..2026_01_01").mkdir()
    create_key(tmp_path / "..2026_01_01" / "key")
    (tmp_path / "..2026_01_01" / "key").chmod(mode)
    (tmp_path / "..data").symlink_to("..2026_01_01")
    (tmp_path / "key").symlink_to("..data/key")
    assert repr(read_key(tmp_path / "key")) == "Key(...)"


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_key(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_key(tmp_path)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 41, b"\xff" * 40, b"~" * 40])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="has no key") as caught:
        read_key(path)
    assert not content or content.decode(errors="replace") not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_missing_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_key(tmp_path / "none")


def handshake(server: Key, client: Key) -> list[str]:
    """Have both ends of a connection greet each other; return what went wrong at each."""
    ends, wrong = socket.socketpair(), ["", ""]

    def greet(place: int, key: Key) -> None:
        try:
            with key.protect(ends[place], server=place == 0) as sock:
                sock.settimeout(5)
                sock.do_handshake()
                sock.sendall(b"x")
                assert sock.recv(1) == b"x"
                assert sock.version() == "TLSv1.3"
        except OSError as error:
            wrong[place] = type(error).__name__

    threads = [threading.Thread(target=greet, args=each) for each in ((0, server), (1, client))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_the_same_secret_is_the_same_identity_wherever_it_is_read(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    assert handshake(read_key(tmp_path / "key"), read_key(tmp_path / "key")) == ["", ""]


def test_another_secret_is_refused_by_both(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    create_key(tmp_path / "other")
    assert all(handshake(read_key(tmp_path / "key"), read_key(tmp_path / "other")))


def test_older_protocols_are_refused(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    key, ends = read_key(tmp_path / "key"), socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with key.protect(ends[0], server=True) as server:
        server.settimeout(5)
        thread = threading.Thread(target=refuses, args=(server,))
        thread.start()
        with context.wrap_socket(ends[1], do_handshake_on_connect=False) as client:
            client.settimeout(5)
            with pytest.raises(ssl.SSLError):
                client.do_handshake()
        thread.join()


def refuses(server: ssl.SSLSocket) -> None:
    with pytest.raises(ssl.SSLError):
        server.do_handshake()
