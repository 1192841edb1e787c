"""The scoring thread: what is joined, refused, late, abandoned; one bad request fails alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from satrap.batch import Batch
from satrap.errors import DataError
from satrap.serve.http.errors import RequestError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.model import ServedModel, StageSeconds
from satrap.serve.scoring.scorer import JOINED_ROWS, Scorer


class Slow(ServedModel):
    """A model whose score is the number of its row, and which waits until it may begin."""

    def __init__(self) -> None:
        self.may, self.begun, self.sizes = threading.Semaphore(0), threading.Semaphore(0), list[int]()
        self._overlay, self.step, self.seconds = None, 1, StageSeconds()

    def encode(self, requests: Sequence[ScoreRequest]) -> Batch:
        values = np.concatenate([np.array(request.items["row"], np.float32) for request in requests])
        if (values < 0).any():
            raise DataError("value is negative")
        return Batch(len(values), {}, numeric=values[:, None])

    def score(self, batch: Batch) -> Any:
        self.sizes.append(batch.size)
        self.begun.release()
        assert self.may.acquire(timeout=60)
        assert batch.numeric is not None
        if (batch.numeric == 13).any():
            raise ZeroDivisionError
        return batch.numeric

    def close(self) -> None:
        pass


@contextmanager
def scorer(**limits: float) -> Iterator[tuple[Scorer, Slow]]:
    model = Slow()
    with Scorer(model, **{"alone_seconds": 0, **limits}) as found:  # type: ignore[arg-type]
        yield found, model
        for _ in range(1000):
            model.may.release()


def rows(*numbers: int) -> ScoreRequest:
    return ScoreRequest(len(numbers), {}, {"row": list(numbers)})


async def first_in(scorer: Scorer, model: Slow) -> asyncio.Future[Any]:
    """Return a request that is being scored, so that others wait."""
    first = scorer.score(rows(0), seconds=60)
    assert await asyncio.to_thread(model.begun.acquire, True, 60)
    return first


def go_on(model: Slow, count: int = 1000) -> None:
    for _ in range(count):
        model.may.release()


def test_what_waits_is_joined_in_order() -> None:
    async def main() -> None:
        with scorer() as (found, model):
            waiting = [await first_in(found, model)]
            waiting += [found.score(rows(*range(start, start + 3)), seconds=60) for start in (1, 4, 7)]
            go_on(model)
            answers = [(await answer).scores[:, 0].tolist() for answer in waiting]
            assert answers == [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9]]
            assert model.sizes == [1, 9]

    asyncio.run(main())


def test_no_more_are_joined_than_gain_from_it() -> None:
    async def main() -> None:
        with scorer() as (found, model):
            waiting = [await first_in(found, model)]
            sizes = [JOINED_ROWS - 1, 1, 1, JOINED_ROWS + 500, 2]
            waiting += [found.score(rows(*range(20, 20 + size)), seconds=60) for size in sizes]
            go_on(model)
            await asyncio.gather(*waiting)
            assert model.sizes == [1, JOINED_ROWS, 1, JOINED_ROWS + 500, 2]

    asyncio.run(main())


def test_a_bad_request_fails_alone() -> None:
    async def main() -> None:
        with scorer() as (found, model):
            first = await first_in(found, model)
            waiting = [found.score(rows(number), seconds=60) for number in (1, -5, 13, 2)]
            go_on(model)
            await first
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(answer).__name__ for answer in answers] == [
                "ScoredRequest",
                "DataError",
                "ZeroDivisionError",
                "ScoredRequest",
            ]
            assert [int(answers[i].scores[0, 0]) for i in (0, 3)] == [1, 2]  # type: ignore[union-attr]
            assert (found.statistics.failed, found.statistics.requests) == (2, 3)

    asyncio.run(main())


def test_a_full_queue_and_a_deadline_are_refusals() -> None:
    async def main() -> None:
        with scorer(max_queue=2) as (found, model):
            first = await first_in(found, model)
            late, good = found.score(rows(1), seconds=0.01), found.score(rows(2), seconds=60)
            with pytest.raises(RequestError) as full:
                found.score(rows(3), seconds=60)
            assert (full.value.status, full.value.headers) == (503, {"Retry-After": "1"})
            await asyncio.sleep(0.05)
            go_on(model)
            await first
            with pytest.raises(RequestError) as error:
                await late
            assert error.value.status == 504
            assert (await good).scores[0, 0] == 2
            assert model.sizes == [1, 1]

    asyncio.run(main())


def test_what_nobody_waits_for_is_not_scored() -> None:
    async def main() -> None:
        with scorer() as (found, model):
            first = await first_in(found, model)
            gone, good = found.score(rows(1, 2, 3), seconds=60), found.score(rows(4), seconds=60)
            gone.cancel()
            go_on(model)
            await asyncio.gather(first, good)
            assert (model.sizes, found.statistics.abandoned) == ([1, 1], 1)

    asyncio.run(main())


def test_what_waits_is_scored_before_the_end() -> None:
    async def main() -> None:
        with scorer() as (found, model):
            waiting = [await first_in(found, model), found.score(rows(1), seconds=60)]
            ending = asyncio.create_task(asyncio.to_thread(found.close))
            await asyncio.sleep(0.05)
            go_on(model)
            assert [(await answer).scores[0, 0] for answer in waiting] == [0, 1]
            await ending

    asyncio.run(main())


def test_a_short_request_beside_nobody_is_scored_in_the_event_loop() -> None:
    """At first nobody knows what is short; several at once, a long one and actions are the thread's."""
    threads: list[str] = []

    class Noting(Slow):
        def score(self, batch: Batch) -> Any:
            threads.append(threading.current_thread().name)
            return super().score(batch)

    async def main() -> None:
        model = Noting()
        go_on(model)
        with Scorer(model, alone_seconds=60) as found:
            for number in (1, 2):
                assert (await found.score(rows(number), seconds=60)).scores[0, 0] == number
                await asyncio.sleep(0.05)  # the thread has nothing to do again
            together = [found.score(rows(number), seconds=60) for number in (3, 4)]
            assert [(await answer).scores[0, 0] for answer in together] == [3, 4]
            await asyncio.sleep(0.05)
            found._alone_seconds = 0
            await found.score(rows(5), seconds=60)
            found._alone_seconds = 60
            await asyncio.sleep(0.05)
            gone = found.score(rows(6), seconds=60)
            gone.cancel()
            await asyncio.sleep(0.05)
            assert found.statistics.abandoned == 1
            waiting, done = found.score(rows(7), seconds=60), found.do(lambda: None)
            await asyncio.gather(waiting, asyncio.wrap_future(done))
            bad = found.score(rows(-1), seconds=60)
            with pytest.raises(DataError):
                await bad
            await asyncio.sleep(0.05)
            model.remote = True
            await found.score(rows(8), seconds=60)

    asyncio.run(main())
    main_, thread = threading.main_thread().name, "satrap-scorer"
    assert threads[:2] == [thread, main_]
    assert threads[2] == threads[-1] == thread, "rows of other processes keep no event loop waiting"
    assert len(threads) in (6, 7)
