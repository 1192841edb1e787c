"""One end of a connection, beside a socket that knows nothing of it."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from satrap.rpc.transport.connection import Connection, LostError, Pace
from tests.rpc import plain


@contextmanager
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        other.settimeout(5)
        connection = Connection(listener.accept()[0], max_bytes=1 << 24, ready=True)
        with other:
            yield connection, other
        connection.close()


def received(connection: Connection, *, once: bool = False) -> list[list[bytes]]:
    """Wait until something can be read; return the messages, or the first of them."""
    assert select.select([connection], [], [], 5)[0], "nothing to read"
    return taken(connection, 1 if once else None)


def taken(connection: Connection, most: int | None = None) -> list[list[bytes]]:
    return [[bytes(part) for part in message] for message in islice(connection.receive(), most)]


def test_who_leaves_after_the_first_message_still_hears_of_the_next() -> None:
    """While a large part is awaited the system wakes up for much only; after it, for every byte."""
    with pair() as (connection, other):
        large = [b"head", bytes(3_000_000)]
        other.setblocking(False)
        data = memoryview(plain.encode(large))
        found: list[list[bytes]] = []
        while not found:
            if len(data):
                data = data[other.send(data[:900_000]) :]
            found = received(connection, once=True)
        assert found == [large]
        other.setblocking(True)
        plain.send(other, [b"small"])
        assert received(connection) == [[b"small"]]


def test_a_burst_ends_so_that_others_have_their_turn() -> None:
    with pair() as (connection, other):
        for i in range(100):
            plain.send(other, [bytes(3000), b"%d" % i])
        found: list[list[bytes]] = []
        while len(found) < 100:
            got = taken(connection) if connection.more else received(connection)
            assert len(got) < 40
            found += got
        assert [int(m[1]) for m in found] == list(range(100))


def test_one_that_is_paused_takes_nothing_more() -> None:
    with pair() as (connection, other):
        plain.send(other, [b"x"])
        assert select.select([connection], [], [], 5)[0]
        connection.paused = True
        assert list(connection.receive()) == []
        connection.paused = False
        assert received(connection) == [[b"x"]]


@pytest.mark.parametrize("count", [1, 5, 300])
def test_what_the_system_does_not_take_waits_and_goes_later(count: int) -> None:
    with pair() as (connection, other):
        message = [b"head", bytes(50_000), b"", b"tail" * 2000]
        for _ in range(count):
            connection.send(message)
        waiting = connection.unsent
        connection.flush()
        assert connection.sent + connection.unsent == waiting
        for _ in range(count):
            connection.flush()
            assert plain.receive(other) == message
        assert connection.unsent == 0


def test_the_end_of_the_other_side_is_told() -> None:
    with pair() as (connection, other):
        other.close()
        assert select.select([connection], [], [], 5)[0]
        with pytest.raises(LostError, match="closed the connection"):
            list(connection.receive())


def test_strangers_are_told_apart_from_those_who_left() -> None:
    with pair() as (connection, other):
        other.sendall(b"HTTP/1.1 400 Bad Request\r\n")
        assert select.select([connection], [], [], 5)[0]
        with pytest.raises(LostError, match="not a satrap message") as caught:
            list(connection.receive())
        assert caught.value.stranger


def test_slow_is_who_moves_less_than_256_kib_a_second_with_something_to_move() -> None:
    pace = Pace(0.0)
    assert pace.slow(0, 5.0, idle=True) == 0
    assert pace.slow(0, 8.0, idle=False) == 3
    assert pace.slow(1000, 9.0, idle=False) == 4
    assert pace.slow(5 << 20, 10.0, idle=False) == 0
    assert pace.slow(5 << 20, 11.0, idle=False) == 1
