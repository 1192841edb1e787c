"""A client of one server: what it asks is answered, and what ends says so."""

from __future__ import annotations

import contextlib
import time
from contextlib import closing

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
        client = Client("adder 0", {0: server.address})
        answers = [client.ask(0, MessageKind.UPDATE, ONE) for _ in range(300)]  # more than may be under way
        totals = [unpack_text(answer.result(20)[0])["total"] for answer in answers]
        traffic = client.transfer()
        client.close()
    assert totals == list(range(1, 301))
    assert traffic["sent"] == len(pack_text({})) + 300 * len(ONE[0])
    assert traffic["received"] == sum(len(pack_text({"total": n})) for n in totals)
    assert (traffic["resent"], traffic["waiting"]) == (0, 0)


def test_a_closed_client_takes_nothing_and_may_be_closed_twice() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        client = Client("adder 0", {0: server.address})
        client.close()
        client.close()
        with pytest.raises(ExchangeError, match="the connection is closed"):
            client.ask(0, MessageKind.UPDATE, ONE)


@pytest.mark.cluster
def test_a_server_that_is_gone_fails_what_waits_and_what_follows() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        client = Client("adder 0", {0: server.address}, options=ClientOptions(deadline=1.0))
        client.ask(0, MessageKind.UPDATE, ONE).result(20)
    for _ in range(2):
        with pytest.raises(ExchangeError, match=r"adder 0 at .* has not responded for 1 s"):
            client.ask(0, MessageKind.UPDATE, ONE).result(20)
    client.close()


@pytest.mark.cluster
def test_a_server_that_compiles_is_waited_for() -> None:
    class Compiler(Adder):
        def _add(self, number: int) -> list[Buffer]:
            with event.trigger_event("numba:compile"):
                time.sleep(2.5)
            return super()._add(number)

    with Server("127.0.0.1:0", Compiler()) as server:
        client = Client("adder 0", {0: server.address}, options=ClientOptions(deadline=1.0, heartbeat=0.2))
        answer = client.ask(0, MessageKind.UPDATE, ONE).result(20)
        client.close()
    assert unpack_text(answer[0])["total"] == 1


def test_a_hello_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with Server("127.0.0.1:0", Adder()) as server:
        with pytest.raises(ConfigError, match="description of tables and features"):
            Client("adder 0", {0: server.address}, hellos={0: {"tables": "x" * (5 << 20)}})
        assert server.statistics().messages == 0


def test_servers_have_numbers_and_join_and_leave() -> None:
    adders = [Adder() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server("127.0.0.1:0", adder)) for adder in adders]
        client = Client("adder {}", {n: servers[n].address for n in (0, 2)})
        stack.callback(client.close)
        client.join({1: servers[1].address}, {1: {}}, epoch=1)
        answers = [client.ask(n, MessageKind.UPDATE, [pack_text({"number": n})]) for n in (0, 1, 2)]
        assert [unpack_text(answer.result(20)[0])["total"] for answer in answers] == [0, 1, 2]
        left: list[int] = []
        client.ask(1, MessageKind.BYE).result(20)
        client.leave([1], lambda: left.append(1))
        assert (list(client.peers), left) == ([0, 2], [1])
        with pytest.raises(ExchangeError, match="adder 1 has left the cluster"):
            client.ask(1, MessageKind.UPDATE, ONE).result(20)


def test_an_error_that_nobody_waited_for_is_raised_later() -> None:
    with Server("127.0.0.1:0", Adder()) as server, closing(Client("adder", {0: server.address})) as client:
        client.raise_error()
        client.ask(0, MessageKind.LOOKUP, limited=True).add_done_callback(client.note)
        with pytest.raises(ConfigError, match="only adds"):
            client.flush()
        with pytest.raises(ConfigError, match="only adds"):
            client.raise_error()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="'nowhere' is not HOST:PORT"):
        Client("adder", {0: "nowhere"})
