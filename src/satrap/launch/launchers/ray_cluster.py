"""Access to Ray: import, connection to a cluster, text of errors."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

from satrap.errors import ConfigError
from satrap.runtime.environment import variables

CONNECT_SECONDS = 5.0
"""Seconds for the head of a cluster to accept a connection."""


def ray_module(where: str = "cluster.launcher") -> Any:
    """Return the package `ray`; if it is missing, raise `ConfigError`. `where` is the setting that needs
    Ray."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "Ray is not installed", where=where, fix=f"pip install 'satrap[ray]', or remove {where}"
        ) from error
    return ray


def join(address: str | None, *, where: str = "cluster.address", **options: Any) -> None:
    """Join the cluster at an address, or start a local Ray; raise `ConfigError` on failure.

    Args:
        address: HOST:PORT, "auto" for the cluster running on this machine, or None: start a local Ray.
        where: the setting with the address, for errors.
        options: other arguments of `ray.init`.
    """
    ray = ray_module()
    variables().setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray also logs to the terminal, but roles' lines are forwarded by the agents.
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if address not in (None, "auto"):
            host, _, port = str(address).rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()  # Ray tries for minutes
        with _keep_handlers():
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"cannot reach the Ray cluster at {address}" if address else "Ray does not start",
            where=where,
            why=last_line(error),
            fix="check the address, and RAY_AUTH_TOKEN_PATH if the cluster requires a token",
        ) from error


@contextmanager
def _keep_handlers() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def last_line(error: BaseException) -> str:
    """Return the last nonempty line of an error's text; earlier lines are a traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return shorten(lines[-1], 160, placeholder=" ...") if lines else type(error).__name__
