"""No ring is missed, and what is watched is reported."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import deque

from satrap.rpc.transport.poller import READ, WRITE, Poller


def test_no_ring_is_missed() -> None:
    """Whoever rings has posted something before, which the waiting thread then finds."""
    poller: Poller[int] = Poller()
    posted: deque[int] = deque()
    rounds, taken = 3000, threading.Semaphore(0)

    def post(thread: int) -> None:
        for _ in range(rounds):
            posted.append(thread)
            poller.ring()
            assert taken.acquire(timeout=60)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=post, args=(i,)) for i in range(4)]
    try:
        for thread in threads:
            thread.start()
        count = 0
        while count < 4 * rounds:
            started = time.monotonic()
            poller.wait(30)
            assert time.monotonic() - started < 29, "a ring was missed"
            while posted:
                posted.popleft()
                taken.release()
                count += 1
    finally:
        sys.setswitchinterval(before)
        taken.release(4 * rounds)
        for thread in threads:
            thread.join()
        poller.close()


def test_what_is_watched_is_reported_until_it_is_not() -> None:
    poller: Poller[str] = Poller()
    a, b = socket.socketpair()
    with a, b:
        poller.watch(a, READ, "a")
        assert poller.wait(0) == []
        b.send(b"x")
        assert poller.wait(5) == [("a", READ)]
        poller.watch(a, READ | WRITE, "a")
        assert poller.wait(5) == [("a", READ | WRITE)]
        poller.watch(a, 0, "a")
        assert poller.wait(0) == []
        poller.again("more")
        assert poller.wait(5) == [("more", READ)]
        assert poller.wait(0) == []
    poller.close()
    poller.ring()  # nobody waits any more


def test_an_item_has_one_turn_however_many_reasons_there_are() -> None:
    """Otherwise one connection that sends much would have hundreds of turns before the next has one."""
    poller: Poller[str] = Poller()
    a, b = socket.socketpair()
    with a, b:
        poller.watch(a, READ | WRITE, "a")
        b.send(b"x")
        for _ in range(3):
            poller.again("a")
        assert poller.wait(5) == [("a", READ | WRITE)]
    poller.close()
