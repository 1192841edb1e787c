"""Shards in real processes that are killed behind a network that loses, doubles, delays and reorders."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from satrap.exchange import LocalExchange
from satrap.store import Shard
from tests.contract.parties import EXACT, SEED, TABLES, Process, assert_equal_contents, connect, train
from tests.contract.proxies import MessageProxy

pytestmark = pytest.mark.chaos


@contextmanager
def killed_again_and_again(folder: Path, seed: int) -> Iterator[tuple[Process, list[str], threading.Event]]:
    """A shard with a journal that dies every second or so, and what it says when it comes back.

    The first time is after the event is set: a client that was never served is refused in the end.
    """
    rng, begin, ended, said = random.Random(seed), threading.Event(), threading.Event(), []
    current = Process("127.0.0.1:0", "--journal", str(folder))

    def loop() -> None:
        nonlocal current
        begin.wait()
        while not ended.wait(rng.uniform(0.3, 1.5)):
            current.popen.kill()
            current.end()
            current = Process(address, "--journal", str(folder))
            if current.before:  # nothing, if it was killed before anything was asked of it
                said.append(current.before)

    address = current.address
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield current, said, begin
    finally:
        ended.set()
        begin.set()
        thread.join()
        current.end()


@pytest.mark.parametrize("fault", [0.0, 0.05])
def test_each_update_is_applied_once_whatever_dies_and_gets_lost(
    tmp_path: Path, fault: float, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    with capsys.disabled():
        print(f"\nseed {seed}")
    reference = LocalExchange(Shard(TABLES, seed=SEED))
    with (
        killed_again_and_again(tmp_path / "journal", seed) as (first, said, begin),
        MessageProxy(first.address, seed=seed, fault=fault) as proxy,
    ):
        exchange = connect([proxy.address], wire=EXACT, heartbeat=0.1, deadline=60.0)
        rounds = 0
        while len(said) < 4:
            mine = train(exchange, steps=40, seed=rounds, ahead=4)
            theirs = train(reference, steps=40, seed=rounds, ahead=4)
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
            rounds += 1
            begin.set()
        assert_equal_contents(exchange, reference)
        assert all("recovering from the start of the run + journal (" in line for line in said)
        exchange.close()
    reference.close()
