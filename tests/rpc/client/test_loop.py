"""A process that stood still itself blames no server for it, and waits no longer than that."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import Future

import pytest

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc.client.loop import ClientLoop
from satrap.rpc.client.peer import Peer
from satrap.rpc.wire.frames import MessageKind


@pytest.mark.cluster
def test_a_standstill_is_excused_and_a_silent_server_given_up_after_it() -> None:
    ended: Future[object] = Future()
    asleep, awake = Future[float](), Future[float]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        peer = Peer("server 0", client=7, epoch=1, deadline=2.0, heartbeat=0.5)
        loop = ClientLoop(key=None, on_end=ended.set_result)
        loop.post(lambda: loop.join(peer, address))

        def ask() -> None:
            asleep.set_result(time.monotonic())
            peer.request(MessageKind.HELLO, [b"x"], lambda *_: None, now=time.monotonic())

        def sleep() -> None:
            time.sleep(3.0)  # longer than the deadline
            awake.set_result(time.monotonic())

        loop.post(ask)
        loop.post(sleep)
        error = ended.result(20)
        waited = time.monotonic() - awake.result()
        loop.stop()
    assert isinstance(error, ExchangeError)
    assert "has not responded for 2 s" in error.what
    assert waited > 1.5
    assert awake.result() - asleep.result() >= 3.0


def test_what_is_posted_runs_in_the_thread_in_order() -> None:
    done: list[int] = []
    end: Future[object] = Future()
    loop = ClientLoop(key=None, on_end=end.set_result)
    for number in range(100):
        loop.post(lambda number=number: done.append(number))  # type: ignore[misc]
    loop.stop()
    assert done == list(range(100))
    assert end.result(1) is None


@pytest.mark.cluster
@pytest.mark.parametrize(("said", "times"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", 1), (b"", 5)])
def test_a_stranger_is_refused_at_once_and_who_hangs_up_after_five_times(said: bytes, times: int) -> None:
    ended: Future[object] = Future()
    accepted: list[socket.socket] = []

    def answer() -> None:
        with contextlib.suppress(OSError):  # the server is shut down
            while True:
                connection, _ = server.accept()
                accepted.append(connection)
                connection.sendall(said)
                if not said:
                    connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = Peer("server 0", client=7, epoch=1, deadline=20.0, heartbeat=0.5)
        answering = threading.Thread(target=answer)
        answering.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        loop = ClientLoop(key=None, on_end=ended.set_result)
        loop.post(lambda: loop.join(peer, address))
        try:
            error = ended.result(20)
        finally:
            loop.stop()
            server.shutdown(socket.SHUT_RDWR)  # closing it would leave the thread waiting, and the port open
            answering.join()
            for connection in accepted:
                connection.close()
    assert isinstance(error, SatrapError)
    assert len(accepted) == times
