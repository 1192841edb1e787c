"""A client's connection: made, made again, and given up for clear reasons."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.rpc import Key, create_key, read_key
from satrap.rpc.transport.connection import Connection, LostError
from satrap.rpc.transport.dialer import Dialer
from tests.rpc.serving import Echo


def dialer(address: str, key: Key | None = None) -> tuple[Dialer, threading.Event]:
    rung = threading.Event()
    return Dialer(address, key=key, max_bytes=1 << 20, ring=rung.set), rung


def made(dialer: Dialer, rung: threading.Event) -> Connection:
    assert rung.wait(30)
    rung.clear()
    connection = dialer.made()
    assert connection is not None
    assert dialer.made() is None
    return connection


def test_a_connection_is_made_and_made_again(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    for key in (None, read_key(tmp_path / "key")):
        with Echo(key=key) as echo:
            end, rung = dialer(echo.address, key)
            for _ in range(2):
                end.dial()
                connection = made(end, rung)
                connection.send([b"x"])
                connection.flush()
                found: list[bytes] = []
                until = time.monotonic() + 20
                while not found and time.monotonic() < until:
                    found = [bytes(message[0]) for message in connection.receive()]
                assert found == [b"x"]
                end.succeeded()
                connection.close()
            end.close()


def test_a_server_may_be_away_for_thousands_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    end, _ = dialer("127.0.0.1:1")
    monkeypatch.setattr(end, "_try", delays.append)
    for _ in range(5000):
        end.dial()
    assert (delays[:3], max(delays)) == ([0.0, 0.1, 0.2], 1.0)


def test_names_are_looked_up() -> None:
    with Echo() as echo:
        end, rung = dialer(echo.address.replace("127.0.0.1", "localhost"))
        end.dial()
        made(end, rung).close()
        end.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1"])
def test_nobody_there_is_told_and_not_taken_for_a_refusal(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    end, rung = dialer(f"{host}:{port}")
    end.dial()
    assert rung.wait(60)
    with pytest.raises(LostError) as caught:
        end.made()
    assert (caught.value.met, caught.value.stranger) == (False, False)
    end.close()


def test_another_key_is_told_as_such(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    create_key(tmp_path / "other")
    with Echo(key=read_key(tmp_path / "key")) as echo:
        end, rung = dialer(echo.address, read_key(tmp_path / "other"))
        end.dial()
        assert rung.wait(30)
        with pytest.raises(LostError) as caught:
            end.made()
        assert caught.value.stranger
        end.close()


@pytest.mark.cluster
def test_attempts_come_later_and_later_and_end_when_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    end, rung = dialer(address)
    times = [time.monotonic()]
    for _ in range(4):
        end.dial()
        assert rung.wait(30)
        rung.clear()
        times.append(time.monotonic())
        with pytest.raises(LostError):
            end.made()
    assert times[4] - times[3] >= 0.2  # 0.05 doubled twice
    end.close()
    end.dial()
    assert not rung.wait(1.5)


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        dialer("nowhere")
