"""Addresses (HOST:PORT), and which of them only this machine can reach."""

from __future__ import annotations

import ipaddress

from satrap.errors import ConfigError
from satrap.rpc.transport.key import Key


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT or [IPv6]:PORT.

    Raises:
        ConfigError: the address has neither form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not HOST:PORT", fix="write, for example, 127.0.0.1:5000")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listen(listen: str, key: Key | None) -> None:
    """Raise a `ConfigError` for an address that other machines can reach, unless there is a key."""
    host, _ = split_address(listen)
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"listening on {listen} needs a key",
            why="without a key, anyone who can reach the port can read and change the model",
            fix="give a key file, or listen on 127.0.0.1",
        )
