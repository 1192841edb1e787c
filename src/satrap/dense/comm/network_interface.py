"""Finds the network interface behind an address of this machine."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

_LOOPBACKS = ("lo", "lo0")
_GET_ADDRESS = 0x8915
"""Linux's SIOCGIFADDR, see netdevice(7): the first IPv4 address of an interface."""


def interface_of(host: str) -> str | None:
    """Return the name of the interface that has the IPv4 address of `host`; None: not found.

    Args:
        host: a name or address of this machine.
    """
    names = [name for _, name in socket.if_nameindex()]
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    if address.startswith("127."):
        return next((name for name in names if name in _LOOPBACKS), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in names:
            with suppress(OSError):  # it has no IPv4 address
                reply = fcntl.ioctl(any_socket, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(reply[20:24]) == address:
                    return name
    return None
