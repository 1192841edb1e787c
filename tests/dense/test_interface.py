from __future__ import annotations

import socket

from satrap.dense.interface import interface_of


def test_an_address_has_an_interface() -> None:
    loopback = interface_of("127.0.0.1")
    assert loopback in {name for _, name in socket.if_nameindex()}
    assert interface_of("localhost") == loopback
    assert interface_of("127.0.1.1") == loopback
    assert interface_of("192.0.2.1") is None  # an address for documentation
    assert interface_of("no.such.host.invalid") is None
