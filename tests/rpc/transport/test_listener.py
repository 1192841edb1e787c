"""Each bound of a listener, with sockets that go beyond it beside one that does not."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.rpc import Key, create_key, read_key
from satrap.rpc.transport.listener import Bounds, Listener
from tests.contract.parties import Process, connect
from tests.rpc import plain
from tests.rpc.serving import Echo
from tests.support.scraping import scrape


@pytest.fixture(params=[False, True], ids=["open", "key"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> Key | None:
    if not request.param:
        return None
    create_key(tmp_path / "key")
    return read_key(tmp_path / "key")


@contextmanager
def client(echo: Echo, key: Key | None = None, *, trusted: bool = True) -> Iterator[socket.socket]:
    with ExitStack() as stack:
        sock = stack.enter_context(plain.connect(echo.address))
        if key is not None:
            sock = stack.enter_context(key.protect(sock, server=False))
            sock.do_handshake()
        if trusted:
            assert ask(sock, b"trust me") == [b"trust me"]
        yield sock


def ask(sock: socket.socket, *parts: bytes) -> list[bytes]:
    plain.send(sock, parts)
    return plain.receive(sock)


def closed(sock: socket.socket, seconds: float = 5.0) -> bool:
    """Whether the other side closes a connection, on which it sends nothing more, in time."""
    sock.settimeout(seconds)
    try:
        while sock.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_messages_of_every_size_come_back_as_they_went(key: Key | None) -> None:
    with Echo(key=key) as echo, client(echo, key) as one, client(echo, key) as other:
        for size in (0, 1, 100, 5000, 1 << 14, (1 << 20) + 3, 5 << 20):
            sent = [b"head", os.urandom(size), b"", os.urandom(size // 3)]
            for sock in (one, other):
                sock.settimeout(30)
                assert ask(sock, *sent) == sent
        assert ask(one, *[b"x"] * 8192) == [b"x"] * 8192


def test_many_messages_at_once_keep_their_order(key: Key | None) -> None:
    with Echo(key=key) as echo, client(echo, key) as sock:
        sock.sendall(b"".join(plain.encode([str(i).encode()]) for i in range(2000)))
        assert [int(plain.receive(sock)[0]) for _ in range(2000)] == list(range(2000))


@pytest.mark.cluster
def test_a_stranger_has_so_much_time_and_a_client_has_all(key: Key | None) -> None:
    with Echo(Bounds(patience=0.6), key) as echo, client(echo, key) as friend:
        with client(echo, key, trusted=False) as sock, plain.connect(echo.address) as silent:
            assert ask(sock, b"hello") == [b"hello"]
            assert closed(sock)
            assert closed(silent)
        assert ask(friend, b"still there") == [b"still there"]


def test_the_oldest_stranger_makes_room() -> None:
    with Echo(Bounds(strangers=3)) as echo, ExitStack() as stack, client(echo) as friend:
        socks = [stack.enter_context(client(echo, trusted=False)) for _ in range(3)]
        for sock in socks:
            ask(sock, b"x")
        with client(echo, trusted=False) as fourth:
            assert ask(fourth, b"x") == [b"x"]
            assert [closed(sock, 0.3) for sock in socks] == [True, False, False]
        assert ask(friend, b"x") == [b"x"]


def test_more_connections_than_allowed_are_closed_and_clients_stay() -> None:
    with Echo(Bounds(connections=3)) as echo, ExitStack() as stack:
        friends = [stack.enter_context(client(echo)) for _ in range(3)]
        with plain.connect(echo.address) as fourth:
            assert closed(fourth)
        assert [ask(sock, b"x") for sock in friends] == [[b"x"]] * 3


def test_the_end_of_a_client_is_told_and_that_of_a_stranger_is_not(key: Key | None) -> None:
    with Echo(key=key) as echo:
        with client(echo, key, trusted=False) as stranger:
            ask(stranger, b"x")
        with client(echo, key), client(echo, key):
            pass
        with client(echo, key) as last:
            limit = time.monotonic() + 10
            while len(echo.ended) < 2 and time.monotonic() < limit:
                ask(last, b"x")
            assert set(echo.ended) == set(echo.seen[1:3])


def test_a_stranger_may_send_less_than_a_client(key: Key | None) -> None:
    bounds = Bounds(stranger_bytes=1000, message_bytes=100_000)
    with Echo(bounds, key) as echo, client(echo, key) as friend, client(echo, key, trusted=False) as sock:
        assert ask(friend, bytes(100_000)) == [bytes(100_000)]
        assert ask(sock, bytes(1000)) == [bytes(1000)]
        plain.send(sock, [bytes(1001)])
        assert closed(sock)
        with client(echo, key) as other:
            with contextlib.suppress(OSError):  # it may be closed before all is sent
                plain.send(other, [bytes(100_001)])
            assert closed(other)
        assert ask(friend, b"forget me") == [b"forget me"]
        plain.send(friend, [bytes(1001)])
        assert closed(friend)
        assert echo.most_held <= 100_000 + 16


@pytest.mark.cluster
@pytest.mark.parametrize("pause", [0.05, 10.0])
def test_a_message_that_drips_or_stops_ends_its_connection(pause: float, key: Key | None) -> None:
    with Echo(Bounds(patience=0.6), key) as echo, client(echo, key) as friend, client(echo, key) as sock:
        sock.settimeout(pause)
        with pytest.raises(OSError):  # noqa: PT011, PT012 -- the system says which
            for byte in plain.encode([bytes(10_000)]):
                sock.sendall(bytes([byte]))
                try:
                    assert sock.recv(1) == b""
                except TimeoutError:
                    continue
                raise ConnectionError
        assert ask(friend, b"x") == [b"x"]


def flood(sock: socket.socket, size: int) -> None:
    """Send messages and read nothing until the other side closes."""
    sock.settimeout(40)
    message, until = plain.encode([bytes(size)]), time.monotonic() + 40
    with pytest.raises(ConnectionError):  # noqa: PT012 -- which of them does not matter
        while time.monotonic() < until:  # a fast machine sends gigabytes in its patience
            sock.sendall(message)


def test_who_reads_nothing_is_read_no_more_and_then_closed() -> None:
    bounds = Bounds(patience=1.0, unsent_bytes=2 << 20)
    with Echo(bounds) as echo, client(echo) as friend, client(echo) as sock:
        flood(sock, 100_000)
        assert echo.most_unsent <= (2 << 20) + 2 * 100_016
        assert ask(friend, b"x") == [b"x"]


def test_what_waits_to_be_sent_is_bounded_in_sum() -> None:
    bounds = Bounds(patience=4.0, unsent_bytes=8 << 20, all_unsent_bytes=16 << 20)
    with Echo(bounds) as echo, ExitStack() as stack, client(echo) as friend:
        socks = [stack.enter_context(client(echo)) for _ in range(12)]
        threads = [threading.Thread(target=flood, args=(sock, 1 << 20)) for sock in socks]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert ask(friend, b"x") == [b"x"]
        assert echo.most_unsent <= (16 << 20) + 12 * ((1 << 20) + 16)


def test_what_a_crowded_connection_does_not_take_is_said_and_can_be_sent_later() -> None:
    callers: list[Hashable] = []
    listener = Listener(
        "127.0.0.1:0",
        bounds=Bounds(unsent_bytes=1 << 20),
        on_message=lambda number, _: callers.append(number),
    )
    with plain.connect(listener.address) as sock:
        plain.send(sock, [b"hello"])
        while not callers:
            listener.poll(0.1)
        listener.trust(callers[0])
        taken = 0
        while taken < 1000 and listener.send(callers[0], [bytes(100_000)]):
            taken += 1
        assert 10 <= taken < 1000  # what the system's buffers hold, and a little more
        assert not listener.send(callers[0], [b"not taken"])
        reader = threading.Thread(target=lambda: [plain.receive(sock) for _ in range(taken)])
        reader.start()
        while reader.is_alive():
            listener.poll(0.01)
        assert listener.send(callers[0], [b"the next one"])
        listener.poll(0)
        assert plain.receive(sock) == [b"the next one"]
    assert not listener.send(999, [b"to nobody"])
    listener.close()


@pytest.mark.cluster
def test_unfinished_messages_are_bounded_in_sum_and_the_oldest_goes_on() -> None:
    bounds = Bounds(patience=3.0, held_bytes=10 << 20, message_bytes=4 << 20)
    with Echo(bounds) as echo, ExitStack() as stack, client(echo) as friend:
        socks = [stack.enter_context(client(echo)) for _ in range(8)]
        for sock in socks:
            sock.settimeout(0.5)
            try:
                sock.sendall(plain.encode([bytes(4 << 20)])[:-1])
            except OSError:
                continue
        friend.settimeout(30)
        assert ask(friend, bytes(4 << 20)) == [bytes(4 << 20)]
        assert echo.most_held <= (10 << 20) + (4 << 20) + 100


def test_one_that_is_stopped_waits_and_the_others_are_served(key: Key | None) -> None:
    with Echo(key=key) as echo, client(echo, key) as friend, client(echo, key) as sock:
        assert ask(sock, b"stop") == [b"stop"]
        plain.send(sock, [b"later"])
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            plain.receive(sock)
        for _ in range(10):
            assert ask(friend, b"x") == [b"x"]
        echo.listener.pause(echo.seen[-11], False)
        echo.listener.ring()
        sock.settimeout(10)
        assert plain.receive(sock) == [b"later"]


def test_what_was_answered_still_leaves_when_it_is_closed(key: Key | None) -> None:
    with Echo(key=key) as echo, client(echo, key) as sock:
        sock.settimeout(10)
        plain.send(sock, [bytes(3 << 20)])
        while len(echo.seen) < 2:
            time.sleep(0.01)
        echo._ending.set()
        assert plain.receive(sock) == [bytes(3 << 20)]


def test_a_place_that_is_taken_is_an_error() -> None:
    with Echo() as echo, pytest.raises(ConfigError, match="Address already in use"):
        Listener(echo.address, on_message=lambda *_: None)


@pytest.mark.cluster
def test_a_process_without_free_descriptors_lives_and_does_not_spin() -> None:
    with Process() as process, ExitStack() as stack:
        exchange = connect([process.address])
        used = len(os.listdir(f"/proc/{process.popen.pid}/fd"))
        resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (used + 8, used + 8))
        for _ in range(60):
            stack.enter_context(plain.connect(process.address))
        assert exchange.telemetry.statistics().rows == 0
        before, started = cpu_seconds(process), time.monotonic()
        time.sleep(2)
        assert cpu_seconds(process) - before < 0.5 * (time.monotonic() - started)
        assert exchange.telemetry.statistics().rows == 0
        other = connect([process.address])
        other.close()
        exchange.close()


@pytest.mark.cluster
def test_an_endpoint_without_free_descriptors_does_not_spin_and_serves_again() -> None:
    with Process("127.0.0.1:0", "--metrics", "127.0.0.1:0") as process, ExitStack() as stack:
        address = process.before.split("http://")[1].split("/")[0]
        exchange = connect([process.address])
        limits = resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        stack.enter_context(plain.connect(address))
        before, started = cpu_seconds(process), time.monotonic()
        time.sleep(2)
        assert cpu_seconds(process) - before < 0.5 * (time.monotonic() - started)
        resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, limits)
        assert scrape(address)["satrap_role_info 0 shard"] == 1
        exchange.close()


def cpu_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
