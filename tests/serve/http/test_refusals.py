"""What refused requests may take, and who waits for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from contextlib import closing
from typing import Any

import pandas as pd
import pytest

from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.http.refusals import FREE_SECONDS, MOST_SECONDS, SHARE, Refusals
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, Served, model_of, served

COST = 0.001 + 0.0001
"""What a refusal counts that took a millisecond."""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_errs_now_and_then_never_waits() -> None:
    refusals = Refusals(clock := Clock())
    for _ in range(1000):
        assert refusals.owe(0.001) == 0
        clock.now += COST / SHARE
    assert sum(refusals.owe(0.001) > 0 for _ in range(int(FREE_SECONDS / COST) - 1)) == 0, "nor a few at once"


def test_refusals_take_a_tenth_of_the_time_however_many_send_them() -> None:
    for clients in (1, 2, 50):
        refusals, clock, spent = Refusals(clock := Clock()), clock, 0.0
        due = [clock.now] * clients  # when each is answered, and sends again
        while clock.now < 200:
            clock.now = max(clock.now, min(due))
            clock.now += COST  # the event loop has one at a time
            spent += COST
            due[due.index(min(due))] = clock.now + refusals.owe(0.001)
        assert spent <= SHARE * 100 + FREE_SECONDS + (clients + 3) * COST


def test_no_answer_waits_longer_than_a_second_and_all_is_paid_then() -> None:
    refusals = Refusals(clock := Clock())
    assert max(refusals.owe(10.0) for _ in range(5000)) == pytest.approx(MOST_SECONDS)
    clock.now += MOST_SECONDS + FREE_SECONDS / SHARE
    assert refusals.owe(0.001) == 0


def test_an_answer_that_waits_is_counted() -> None:
    async def work() -> list[int]:
        refusals = Refusals()
        refusals._paid = time.perf_counter() + 0.05
        task = asyncio.create_task(refusals.wait(0))
        await asyncio.sleep(0.01)
        before = refusals.waiting
        await task
        return [before, refusals.waiting]

    assert asyncio.run(work()) == [1, 0]


@pytest.fixture
def fresh(run: RunFolder) -> Any:
    with served(model_of(run)) as found:
        yield found


def asked(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, float]:
    """Return status and seconds of an answer."""
    begun = time.perf_counter()
    connection.request("POST", "/v1/score", body)
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.perf_counter() - begun


def test_one_wrong_body_of_an_honest_client_costs_it_nothing(fresh: Served, rows: pd.DataFrame) -> None:
    good = json.dumps({"items": plain(rows[COLUMNS][:3])}).encode()
    with closing(http.client.HTTPConnection(*fresh.address, timeout=60)) as connection:
        for _ in range(20):
            assert asked(connection, b"{}")[0] == 422
            assert asked(connection, good)[0] == 200
    assert fresh.application._refusals.waiting == 0
    assert fresh.application._refusals._paid < time.perf_counter(), "none of the answers waited"


def test_a_flood_of_wrong_bodies_is_slowed_and_others_are_not(fresh: Served, rows: pd.DataFrame) -> None:
    good = json.dumps({"items": plain(rows[COLUMNS][:3])}).encode()
    ending, refused = threading.Event(), [0, 0, 0]

    def flood(place: int) -> None:
        with closing(http.client.HTTPConnection(*fresh.address, timeout=60)) as connection:
            while not ending.is_set():
                assert asked(connection, b'{"items": {"book": [1]}}')[0] == 422
                refused[place] += 1

    threads = [threading.Thread(target=flood, args=(place,)) for place in range(len(refused))]
    for thread in threads:
        thread.start()
    time.sleep(1)  # all that is free is used up
    begun, before = time.perf_counter(), sum(refused)
    with closing(http.client.HTTPConnection(*fresh.address, timeout=60)) as connection:
        while time.perf_counter() < begun + 2:
            assert asked(connection, good)[0] == 200
    ending.set()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - begun
    cost = 1e-4  # at least
    assert 10 < sum(refused) - before < spent * SHARE / cost * 1.1 + len(refused)
    assert fresh.application._refusals.waiting == 0
