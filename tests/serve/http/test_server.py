"""Where a server may listen, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from satrap.config.keys.serving import ServingKeys
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.http.app import Application
from satrap.serve.http.server import Corked, ScoringServer, listening
from satrap.serve.scoring.scorer import Scorer
from tests.serve.served import Served, model_of, served


def test_who_could_be_reached_by_others_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="the server has no key"):
        listening("0.0.0.0", 0, secret=None)
    listening("0.0.0.0", 0, secret=b"x").close()


def test_an_address_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listening("127.0.0.1", port, secret=None)


def test_what_is_written_in_one_turn_is_sent_at_once() -> None:
    """So a process that is killed leaves a whole answer or none."""
    sent: list[bytes] = []

    class Transport(asyncio.Transport):
        def write(self, data: bytes | bytearray | memoryview[int]) -> None:
            sent.append(bytes(data))

        def close(self) -> None:
            sent.append(b"closed")

        def is_closing(self) -> bool:
            return sent[-1] == b"closed"

    async def main() -> None:
        transport = Corked(Transport())
        transport.write(b"head ")
        transport.write(b"body")
        assert sent == []
        await asyncio.sleep(0)
        assert sent == [b"head body"]
        transport.write(b"last")
        transport.close()
        assert transport.is_closing()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sent == [b"head body", b"last", b"closed"]


def test_head_and_body_of_an_answer_are_written_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    flush = Corked._flush

    def counted(self: Corked) -> None:
        sizes.append(len(self._parts))
        flush(self)

    monkeypatch.setattr(Corked, "_flush", counted)
    with served(model_of(run)) as server:
        assert server.ask("/live")[0] == 200
    assert 2 in sizes


def test_it_answers_until_it_has_drained(run: RunFolder) -> None:
    listener = listening("127.0.0.1", 0, secret=None)
    with Scorer(model_of(run)) as scorer:
        application = Application(scorer, ServingKeys())
        server = ScoringServer(application, listener, drain_seconds=60)
        ask = Served(listener.getsockname()[:2], scorer, application).ask
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(ready.set,))
        thread.start()
        assert ready.wait(60)
        assert ask("/ready")[0] == 200
        server.stop()
        while ask("/ready")[0] == 200:
            pass
        assert ask("/live")[0] == 200
        server.stop()  # the second time, at once
        thread.join(30)
        assert not thread.is_alive()
