"""What is an address, and which ones need a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.exchange.servers import ShardServer
from satrap.rpc import check_listen, create_key, is_loopback, read_key, split_address


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "10.1.2.3:5000", "[::]:0", "example.org:1", "*:5"])
def test_an_open_address_needs_a_key(listen: str) -> None:
    with pytest.raises(ConfigError, match="needs a key"):
        ShardServer(listen)


def test_with_a_key_any_address_may_be_used(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    check_listen("0.0.0.0:0", read_key(tmp_path / "key"))


@pytest.mark.parametrize("address", ["", "host", ":5", "host:", "host:x", "host:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
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
