"""A client of one server: what it asks is answered, and what ends says so."""

from __future__ import annotations

import time

import pytest
from numba.core import event

from satrap.errors import ConfigError, ExchangeError
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.server.server import Server
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from tests.rpc.server.adder import Adder

ONE = [pack_text({"number": 1})]


def test_requests_are_answered_in_order_and_counted() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        client = Client("adder 0", server.address)
        answers = [client.ask(MessageKind.UPDATE, ONE) for _ in range(300)]  # more than may be under way
        totals = [unpack_text(answer.result(20)[0])["total"] for answer in answers]
        traffic = client.traffic()
        client.close()
    assert totals == list(range(1, 301))
    assert traffic["sent"] == len(pack_text({})) + 300 * len(ONE[0])
    assert traffic["received"] == sum(len(pack_text({"total": n})) for n in totals)
    assert (traffic["resent"], traffic["waiting"]) == (0, 0)


def test_a_closed_client_takes_nothing_and_may_be_closed_twice() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        client = Client("adder 0", server.address)
        client.close()
        client.close()
        with pytest.raises(ExchangeError, match="the connection is closed"):
            client.ask(MessageKind.UPDATE, ONE)


@pytest.mark.cluster
def test_a_server_that_is_gone_fails_what_waits_and_what_follows() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        client = Client("adder 0", server.address, options=ClientOptions(deadline=1.0))
        client.ask(MessageKind.UPDATE, ONE).result(20)
    for _ in range(2):
        with pytest.raises(ExchangeError, match=r"adder 0 at .* has not responded for 1 s"):
            client.ask(MessageKind.UPDATE, ONE).result(20)
    client.close()


@pytest.mark.cluster
def test_a_server_that_compiles_is_waited_for() -> None:
    class Compiler(Adder):
        def _add(self, number: int) -> list[Buffer]:
            with event.trigger_event("numba:compile"):
                time.sleep(2.5)
            return super()._add(number)

    with Server("127.0.0.1:0", Compiler()) as server:
        client = Client("adder 0", server.address, options=ClientOptions(deadline=1.0, heartbeat=0.2))
        answer = client.ask(MessageKind.UPDATE, ONE).result(20)
        client.close()
    assert unpack_text(answer[0])["total"] == 1


def test_a_hello_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        with pytest.raises(ConfigError, match="description of tables and features"):
            Client("adder 0", server.address, hello={"tables": "x" * (5 << 20)})
        assert server.statistics().messages == 0
