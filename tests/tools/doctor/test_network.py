import socket

import pytest

from satrap.tools.doctor import network


def test_loopback_and_name_of_this_machine() -> None:
    found = {one.check: one for one in network.network()}
    assert found["loopback"].level == "ok"
    assert "machine's name" in found
    assert socket.gethostname() not in str(found)


def test_a_closed_loopback_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(socket, "create_server", refuse)
    found = network.loopback()
    assert (found.level, "not permitted" in found.found) == ("error", True)


def test_a_slow_loopback_and_an_unknown_name_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_round_trips", lambda: [0.01] * 3)
    found = network.loopback()
    assert (found.level, "takes 10000 microseconds" in found.found) == ("warning", True)
    monkeypatch.setattr(network, "_round_trips", lambda: [0.002] * 3)
    assert network.loopback().level == "ok"

    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = network.name()
    assert (found.level, "does not resolve" in found.found) == ("warning", True)
