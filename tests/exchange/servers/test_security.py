"""Keys live in files that only their owner reads; open addresses need one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.exchange.servers import ShardServer, create_key, read_key
from satrap.exchange.servers.security import check_listen, is_loopback, split_address


def test_a_new_key_is_private_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text().strip()
    key = read_key(path)
    assert secret not in repr(key)
    with pytest.raises(ConfigError, match="File exists"):
        create_key(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    create_key(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}"):
        read_key(path)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 41, b"\xff" * 40, b"~" * 40])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no key") as caught:
        read_key(path)
    assert not content or content.decode(errors="replace") not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_missing_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_key(tmp_path / "none")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "10.1.2.3:5000", "[::]:0", "example.org:1", "*:5"])
def test_an_open_address_needs_a_key(listen: str) -> None:
    with pytest.raises(ConfigError, match="needs a key"):
        ShardServer(listen)


def test_with_a_key_any_address_may_be_used(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    check_listen("0.0.0.0:0", read_key(tmp_path / "key"))


@pytest.mark.parametrize("address", ["", "host", ":5", "host:", "host:x", "host:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is no HOST:PORT"):
        split_address(address)


def test_loopback_is_recognized() -> None:
    assert [is_loopback(h) for h in ("localhost", "127.9.9.9", "::1", "10.0.0.1", "localhost.example")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_an_address_in_use_is_a_clear_error() -> None:
    with ShardServer("127.0.0.1:0") as first, pytest.raises(ConfigError, match="Address already in use"):
        ShardServer(first.address)
