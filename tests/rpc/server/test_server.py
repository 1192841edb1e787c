"""A server with a handler of a few lines: everything but the work itself is the server's."""

from __future__ import annotations

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
