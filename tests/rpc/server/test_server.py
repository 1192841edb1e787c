"""A server with a handler of a few lines: everything but the work itself is the server's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from satrap.errors import ConfigError, StoreError
from satrap.rpc.client.client import Client
from satrap.rpc.server.server import Server
from satrap.rpc.wire.frames import MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from tests.cluster.runs import eventually
from tests.rpc.server.adder import Adder


def add(client: Client, number: int) -> Any:
    [answer] = client.ask(0, MessageKind.UPDATE, [pack_text({"number": number})]).result(20)
    return unpack_text(answer)["total"]


def test_requests_of_several_clients_reach_the_handler_once_each() -> None:
    with (
        Server("127.0.0.1:0", adder := Adder()) as server,
        closing(Client("adder", {0: server.address})) as one,
        closing(Client("adder", {0: server.address})) as other,
    ):
        assert [add(client, number) for number in (1, 2, 3) for client in (one, other)] == [1, 2, 4, 6, 9, 12]
        assert eventually(lambda: server.statistics().requests["update"] == 6)  # counted after the answer
        told = server.statistics()
    assert adder.total == 12
    assert told.requests == {"hello": 2, "update": 6, "export": 0, "bye": 0}
    assert told.clients == 2
    assert (told.journal_bytes, told.recovered) == (0, 0)


def test_whatever_a_handler_raises_is_an_answer_that_names_its_role() -> None:
    with Server("127.0.0.1:0", Adder()) as server, closing(Client("adder 0", {0: server.address})) as client:
        with pytest.raises(StoreError, match="ZeroDivisionError") as caught:
            client.ask(0, MessageKind.EXPORT).result(20)
        assert caught.value.where.endswith("adder: export")
        with pytest.raises(ConfigError, match="this only adds"):
            client.ask(0, MessageKind.LOOKUP).result(20)
        assert add(client, 5) == 5
        assert server.statistics().refused == 2


def test_a_handler_is_closed_with_its_server() -> None:
    handler = Adder()
    with Server("127.0.0.1:0", handler):
        assert not handler.closed
    assert handler.closed


def test_a_stop_waits_for_the_running_request_and_drops_the_others() -> None:
    class Slow(Adder):
        begun, go = threading.Event(), threading.Event()

        def _add(self, number: int) -> list[Any]:
            self.begun.set()
            self.go.wait(20)
            return super()._add(number)

    with Server("127.0.0.1:0", slow := Slow()) as server:
        client = Client("adder", {0: server.address})
        for number in (1, 2, 3):
            client.ask(0, MessageKind.UPDATE, [pack_text({"number": number})])
        assert slow.begun.wait(20)
        assert eventually(lambda: server.statistics().queued == 2)
        threading.Timer(0.2, slow.go.set).start()
        server.stop()
    assert (slow.total, slow.closed) == (1, True)
    client.close(wait=0.0)


def test_clients_that_are_gone_are_looked_for_under_load_too() -> None:
    class Looking(Adder):
        looks = 0

        def forget(self, gone: Callable[[int], bool]) -> None:
            self.looks += 1

    with (
        Server("127.0.0.1:0", looking := Looking()) as server,
        closing(Client("adder", {0: server.address})) as client,
    ):

        def loaded() -> bool:
            add(client, 1)
            return looking.looks >= 3

        assert eventually(loaded, 20)
