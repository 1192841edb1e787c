from __future__ import annotations

import time
from contextlib import closing

from satrap.rpc.client.client import Client
from satrap.rpc.server.server import Server
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.wire.frames import MessageKind
from satrap.rpc.wire.text import pack_text
from tests.cluster.runs import eventually
from tests.rpc.server.adder import Adder


def test_a_server_counts_from_its_start() -> None:
    started, asked, answered = time.monotonic(), pack_text({"number": 123}), pack_text({"total": 123})
    with Server("127.0.0.1:0", Adder()) as server:
        before = server.statistics()
        assert before == ServerStatistics(seconds=before.seconds, requests=dict.fromkeys(before.requests, 0))
        with closing(Client("adder", {0: server.address})) as client:
            greeted = server.statistics()
            client.ask(0, MessageKind.UPDATE, [asked]).result(20)
            assert eventually(lambda: server.statistics().sent_bytes > greeted.sent_bytes, 20)
            assert eventually(lambda: server.statistics().requests["update"] == 1, 20)
            found = server.statistics()
    assert found.requests == {"hello": 1, "update": 1, "export": 0, "bye": 0}
    assert found.received_bytes - greeted.received_bytes == len(asked)
    assert found.sent_bytes - greeted.sent_bytes == len(answered)
    assert (found.malformed, found.repeated, found.refused, found.clients) == (0, 0, 0, 1)
    assert (found.queued, found.queued_bytes) == (0, 0)
    assert 0 < found.busy_seconds < found.seconds < time.monotonic() - started
