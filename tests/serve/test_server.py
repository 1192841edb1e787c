"""Where a server may listen, and how it ends."""

from __future__ import annotations

import socket
import threading

import pytest

from satrap.config.serving import Serving
from satrap.errors import ConfigError
from satrap.launch.folder import RunFolder
from satrap.serve.app import Application
from satrap.serve.scorer import Scorer
from satrap.serve.server import Server, listening
from tests.serve.served import Served, model_of


def test_who_could_be_reached_by_others_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="there is no key"):
        listening("0.0.0.0", 0, secret=None)
    listening("0.0.0.0", 0, secret=b"x").close()


def test_an_address_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listening("127.0.0.1", port, secret=None)


def test_it_answers_until_it_has_drained(run: RunFolder) -> None:
    listener = listening("127.0.0.1", 0, secret=None)
    with Scorer(model_of(run)) as scorer:
        application = Application(scorer, Serving())
        server = Server(application, listener, drain_seconds=60)
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
