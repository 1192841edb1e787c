"""The server process: it listens, answers until it is stopped, and shuts down without failing a request."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import uvicorn
from uvicorn.importer import import_from_string

from satrap.errors import ConfigError
from satrap.rpc import is_loopback
from satrap.serve.http.app import Application

CONNECTIONS = 4096
"""Maximum number of connections and waiting requests; beyond it uvicorn answers with status 503."""
IDLE_SECONDS = 75
"""Idle time before a connection is closed; longer than in load balancers, which usually use 60 s."""
FINISH_SECONDS = 30
"""Time for requests in flight to finish once new connections are no longer accepted."""
_TICK = 0.01
"""Seconds between checks whether the server has started."""


def listening(host: str, port: int, *, secret: bytes | None) -> socket.socket:
    """Return a listening socket; port 0 takes a free port.

    Raises:
        ConfigError: the address cannot be used, or it is reachable from other machines without a key.
    """
    if secret is None and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and the server has no key",
            why="without a key, every client on the network could use the server",
            fix="write a key with satrap key FILE and give it with --key FILE, or listen on 127.0.0.1",
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}",
            fix="choose another --listen address, or port 0 for a free port",
        ) from error
    return listener


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals to `ScoringServer`, which drains first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Corked:
    """A transport that sends all data of one turn of the event loop together: head and body of an answer.

    A process killed between the two would leave half an answer, and load balancers cannot retry that request.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send data, together with other data of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Close the connection once all data is sent."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with `Corked` transports."""
    kind = "httptools_impl:HttpToolsProtocol" if find_spec("httptools") else "h11_impl:H11Protocol"
    base: Any = import_from_string(f"uvicorn.protocols.http.{kind}")

    class Protocol(base):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(Corked(transport))

    return Protocol


class ScoringServer:
    """Answers requests until it is stopped.

    ```python
    server = Server(application, listening("127.0.0.1", 8000, secret=None))
    server.run()        # until SIGTERM, SIGINT or `stop` from another thread
    ```

    The shutdown is graceful: the server reports that it is not ready, continues to answer for
    `drain_seconds` so that load balancers notice, stops accepting connections, finishes the requests in
    flight, and returns. A second signal or `stop` ends the drain at once.

    Args:
        application: answers the requests.
        listener: socket from `listening`; closed at the end.
        drain_seconds: how long to continue answering, default 0.
    """

    def __init__(
        self, application: Application, listener: socket.socket, *, drain_seconds: float = 0.0
    ) -> None:
        self._application, self._listener, self._drain_seconds = application, listener, drain_seconds
        self._settings = uvicorn.Config(
            application.asgi,
            interface="asgi3",
            loop="uvloop" if find_spec("uvloop") else "asyncio",
            http=_protocol(),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # satrap does not use the client's address
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=FINISH_SECONDS,
        )
        self._uvicorn = _Uvicorn(self._settings)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, started: Callable[[], object] = lambda: None) -> None:
        """Answer until the server is stopped; call `started` once it answers requests."""
        make_loop = self._settings.get_loop_factory()
        with self._listener, asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(self._serve(started))

    def stop(self) -> None:
        """Begin the shutdown; any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain)

    async def _serve(self, started: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._drain)
        serving = asyncio.ensure_future(self._uvicorn.serve(sockets=[self._listener]))
        while not self._uvicorn.started and not serving.done():
            await asyncio.sleep(_TICK)
        if self._uvicorn.started:
            started()
        await serving
        if self._application.shadow is not None:
            await self._application.shadow.disconnect()

    def _drain(self) -> None:
        assert self._loop is not None
        again, self._application.draining = self._application.draining, True
        self._loop.call_later(0.0 if again else self._drain_seconds, self._end)

    def _end(self) -> None:
        self._uvicorn.should_exit = True
