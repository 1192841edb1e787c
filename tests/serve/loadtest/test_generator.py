"""Requests are sent when they are due, and no stall, failure or older step is hidden."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest

from satrap.serve.loadtest.connection import TargetServer
from satrap.serve.loadtest.generator import Generator, RequestOutcome, arrivals, stages_of
from tests.serve.loadtest.stranger import Said, stranger


def sent(url: str, due: list[float], bodies: int = 1, **options: float) -> list[RequestOutcome]:
    target = TargetServer.of(url)
    requests = [target.post("/v1/score", b"%d" % body) for body in range(bodies)]
    generator = Generator(target, requests, np.array(due), read=lambda body: body, **options)  # type: ignore[arg-type]
    return asyncio.run(generator.run())


def test_arrivals_are_a_poisson_process_and_a_seed_repeats_them() -> None:
    due = arrivals(200, 100, seed=5)
    assert np.array_equal(due, arrivals(200, 100, seed=5))
    assert not np.array_equal(due, arrivals(200, 100, seed=6))
    assert 0 < due[0] < due[-1] < 100
    assert abs(len(due) - 20_000) < 5 * 20_000**0.5
    gaps = np.diff(due)
    for at in (0.001, 0.005, 0.01, 0.02):  # the distribution of an exponential variable
        assert np.mean(gaps > at) == pytest.approx(np.exp(-200 * at), abs=0.02)


def test_each_body_has_its_turn_and_its_own_answer() -> None:
    with stranger(lambda number, path, body: Said(body=path.encode() + b" " + body)) as url:
        outcomes = sent(url, [0.002 * i for i in range(50)], bodies=3)
    assert [one.content for one in outcomes] == [b"/v1/score %d" % (i % 3) for i in range(50)]
    assert all(one.due <= one.sent <= one.done for one in outcomes)


def test_a_stall_counts_for_every_request_that_was_due_in_it() -> None:
    """A client that waits for each answer would see one slow request; here all are, by what is left of it."""
    lock, begun = threading.Lock(), 0.0

    def answer(number: int, _: str, __: bytes) -> Said:
        nonlocal begun
        with lock:
            if number == 3:
                begun = time.perf_counter()
                time.sleep(0.4)
        return Said()

    with stranger(answer) as url:
        outcomes = sent(url, [0.01 * i for i in range(20)], connections=2)
    stalled = sorted(outcomes, key=lambda one: one.sent)[3]
    end = stalled.done  # the lock was free before
    late = [one for one in outcomes if stalled.due < one.due]
    assert len(late) >= 15
    assert all(one.latency > 0.3 - (one.due - stalled.due) for one in late)
    assert sum(one.waited for one in outcomes) >= 10, "two connections are busy, the others wait"
    assert end >= 0.4


def test_failures_have_names() -> None:
    release = threading.Event()

    def answer(number: int, _: str, body: bytes) -> Said:
        if body == b"1":
            return Said(503)
        if body == b"2":
            return Said(raw=b"?")
        if body == b"3":
            release.wait(10)
        return Said()

    with stranger(answer) as url:
        outcomes = sent(url, [0.01 * i for i in range(8)], bodies=4, timeout=0.5)
        release.set()
    assert Counter(one.status for one in outcomes) == {"200": 2, "503": 2, "no answer": 2, "timeout": 2}
    assert [one.content for one in outcomes[:2]] == [b"{}", None]
    nobody = sent("http://127.0.0.1:9", [0.0, 0.0])
    assert [one.status for one in nobody] == ["no answer"] * 2


def test_steps_and_stages_are_those_that_the_server_says() -> None:
    def answer(number: int, _: str, __: bytes) -> Said:
        step = [7, 9, 8][number]
        return Said(headers={"Satrap-Step": str(step), "Server-Timing": f"wait;dur={step}.5, write;dur=1"})

    with stranger(answer) as url:
        outcomes = sent(url, [0.0, 0.0, 0.0], connections=1)
    assert [(one.step, one.newest) for one in outcomes] == [(7, -1), (9, 7), (8, 9)]
    assert outcomes[0].stages == {"wait": 0.0075, "write": 0.001}


def test_server_timing() -> None:
    assert stages_of("a;dur=1.5, b;dur=2;desc=x") == {"a": 0.0015, "b": 0.002}
    assert stages_of('missed, hit;desc="x", c;dur=') == {}
    assert stages_of("") == {}


def test_nothing_to_send() -> None:
    assert sent("http://127.0.0.1:9", []) == []
