"""The scoring thread: batches waiting requests, scores them together, and splits the scores."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import numpy as np

from satrap.errors import ConfigError, SatrapError
from satrap.serve.http.errors import RequestError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.model import Scores, ServedModel
from satrap.serve.scoring.signature import Signature

T = TypeVar("T")

ALONE_SECONDS = 0.01
"""Longest time of a request that is scored in the event loop, which blocks other requests."""
JOINED_ROWS = 1024
"""Maximum rows of a batch of requests; a larger request is scored alone. More rows are not faster."""


@dataclass(frozen=True, slots=True)
class ScoredRequest:
    """The scores of a request, or the vectors of its rows.

    Args:
        model: the columns of the request, and the names of the scores.
        step: training step of the scores.
        scores: [rows, outputs]; of a tower, float32[rows, width].
        seconds: stage -> time: "wait" is the request's own time in the queue; the other stages are times of
            its whole batch.
    """

    model: Signature
    step: int
    scores: Scores
    seconds: Mapping[str, float] = field(default_factory=dict)

    def by_output(self) -> dict[str, Scores]:
        """Return output -> its values: [rows], or the vectors [rows, width]."""
        columns = (self.scores,) if self.model.vectors else self.scores.T
        return dict(zip(self.model.outputs, map(np.ascontiguousarray, columns), strict=True))


@dataclass(eq=False, slots=True)
class _ScoringJob:
    request: ScoreRequest
    until: float  # on the clock of `perf_counter`
    future: asyncio.Future[ScoredRequest]
    begun: float = field(default_factory=perf_counter)


@dataclass(slots=True)
class ScorerStatistics:
    """Counters of a `Scorer`.

    Attributes:
        requests: scored requests.
        rows: scored rows.
        batches: number of forward passes of the network.
        wait_seconds: time that requests waited for the scoring thread.
        late: requests that were not scored because their deadline had passed.
        abandoned: requests that were not scored because the client had disconnected.
        failed: requests whose values could not be used.
    """

    requests: int = 0
    rows: int = 0
    batches: int = 0
    wait_seconds: float = 0.0
    late: int = 0
    abandoned: int = 0
    failed: int = 0


class Scorer:
    """Owns the served model: only its thread, or at times the event loop, reads rows and runs the network.

    ```python
    with Scorer(model, max_queue=1024) as scorer:
        answer = await scorer.score(request, seconds=1.0)
    ```

    A single request is scored in the event loop if the thread is idle: the change of threads would cost a
    tenth of the request's time. The thread scores concurrent requests.

    `do` runs an action between two batches, such as an update of the model, and `swap` replaces the model.
    So each answer is from exactly one step.

    Args:
        model: the model to score with; the scorer closes it.
        max_queue: maximum number of waiting requests; further ones are rejected with status 503.
        alone_seconds: longest time of a request that is scored in the event loop, estimated from the last
            batch's time per row; default 0.01; 0: use only the thread.

    Attributes:
        statistics: counters, which any thread may read.
    """

    def __init__(
        self, model: ServedModel, *, max_queue: int = 1024, alone_seconds: float = ALONE_SECONDS
    ) -> None:
        self.model, self.statistics = model, ScorerStatistics()
        self._max_queue, self._alone_seconds = max_queue, alone_seconds
        self._row_seconds = float("inf")  # of the last batch
        self._actions: deque[tuple[Callable[[], object], Future[None]]] = deque()
        self._waiting: deque[_ScoringJob] = deque()
        self._changed = threading.Condition()
        self._stopping = self._resting = self._called = False
        self._thread = threading.Thread(target=self._run, name="satrap-scorer", daemon=True)

    def __enter__(self) -> Scorer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def queued(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def score(self, request: ScoreRequest, *, seconds: float) -> asyncio.Future[ScoredRequest]:
        """Queue a request; all callers share one event loop.

        Args:
            request: request with the model's columns.
            seconds: the request is rejected with status 504 if scoring has not begun after this time.

        Returns:
            A future of the scores. Cancelling it withdraws the request unless scoring has begun.

        Raises:
            RequestError: too many requests are waiting.
        """
        loop = asyncio.get_running_loop()
        job = _ScoringJob(request, perf_counter() + seconds, loop.create_future())
        with self._changed:
            if len(self._waiting) >= self._max_queue:
                raise RequestError(
                    503,
                    f"the queue is full: {len(self._waiting)} requests are waiting",
                    why="another request would miss its deadline in the queue",
                    fix="retry later, send fewer requests, or start more servers",
                    headers={"Retry-After": "1"},
                )
            self._waiting.append(job)
            if self._resting and not self._called and self._short(request):
                self._called = True
                loop.call_soon(self._score_alone)  # runs after callbacks that are already scheduled
            elif not self._called:
                self._changed.notify()
        return job.future

    def _score_alone(self) -> None:
        """Score a single short request in the event loop; leave all others to the thread."""
        with self._changed:  # keeps the thread idle
            self._called = False
            alone = len(self._waiting) == 1 and self._short(self._waiting[0].request)
            if not (alone and self._resting) or self._actions or self._stopping:
                self._changed.notify()
                return
            results = self._results([self._waiting.popleft()])
        _deliver(results)

    def _short(self, request: ScoreRequest) -> bool:
        return not self.model.remote and request.size * self._row_seconds <= self._alone_seconds

    def swap(self, model: ServedModel) -> Future[None]:
        """Score with another model from the next batch on, and close the previous one; see `do`.

        Raises:
            ConfigError: the model has other columns or predictions, so waiting requests could not be scored.
        """
        old = self.model
        if (model.columns, model.outputs, [*model.towers]) != (old.columns, old.outputs, [*old.towers]):
            raise ConfigError(
                f"step {model.step} has another schema than step {old.step}",
                why="queued requests for the old columns and predictions would not fit the new schema",
                fix="start another server for the new schema",
            )
        return self.do(lambda: self._take(model))

    def _take(self, model: ServedModel) -> None:
        old, self.model = self.model, model.after(self.model)
        old.close()

    def do(self, action: Callable[[], object]) -> Future[None]:
        """Run an action in the scoring thread after the current batch, and return its future.

        Any thread may call it. `close` also runs the remaining actions.
        """
        done: Future[None] = Future()
        with self._changed:
            self._actions.append((action, done))
            self._changed.notify()
        return done

    def close(self) -> None:
        """Score the waiting requests, then end the thread and release the model."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._act()
        self.model.close()

    def _run(self) -> None:
        while True:
            jobs = self._next()
            self._act()
            if results := self._results(jobs):
                with suppress(RuntimeError):  # the event loop has ended, and with it all clients
                    jobs[0].future.get_loop().call_soon_threadsafe(_deliver, results)
            if self.model.folding:
                self.model.fold()
            elif not jobs and self._stopping:
                return

    def _act(self) -> None:
        """Run the actions passed to `do`."""
        while self._actions:
            action, done = self._actions.popleft()
            _, error = tried(action)
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _next(self) -> list[_ScoringJob]:
        """Wait for requests, actions or rows to write; return the requests to score together."""
        with self._changed:
            while not (self._waiting or self._actions or self._stopping or self.model.folding):
                self._resting = True
                self._changed.wait()
            self._resting = False
            jobs: list[_ScoringJob] = []
            rows = 0
            while self._waiting and (not jobs or rows + self._waiting[0].request.size <= JOINED_ROWS):
                jobs.append(self._waiting.popleft())
                rows += jobs[-1].request.size
        return jobs

    def _results(
        self, jobs: Sequence[_ScoringJob]
    ) -> list[tuple[_ScoringJob, ScoredRequest | BaseException]]:
        results: list[tuple[_ScoringJob, ScoredRequest | BaseException]] = []
        due: list[_ScoringJob] = []
        now = perf_counter()
        for job in jobs:
            self.statistics.wait_seconds += now - job.begun
            if job.future.cancelled():
                self.statistics.abandoned += 1
            elif job.until < now:
                self.statistics.late += 1
                results.append((job, _late(now - job.begun)))
            else:
                try:
                    check_step(job.request.step, self.model)
                    due.append(job)
                except RequestError as error:
                    results.append((job, error))
        for tower in dict.fromkeys(job.request.tower for job in due):
            results += self._scored([job for job in due if job.request.tower == tower], tower)
        return results

    def _scored(
        self, jobs: Sequence[_ScoringJob], tower: str | None
    ) -> list[tuple[_ScoringJob, ScoredRequest | BaseException]]:
        """Score requests together; if that fails, score each alone, so that only the bad one fails."""
        model, requests, begun = self.model, [job.request for job in jobs], perf_counter()
        before, asked = model.seconds.by_stage(), model if tower is None else model.towers[tower]
        scores, error = tried(lambda: asked.score(asked.encode(requests)))
        if scores is None:
            assert error is not None
            if len(jobs) > 1:
                return [result for job in jobs for result in self._scored([job], tower)]
            self.statistics.failed += 1
            return [(jobs[0], error)]
        results: list[tuple[_ScoringJob, ScoredRequest | BaseException]] = []
        start, took = 0, {stage: s - before[stage] for stage, s in model.seconds.by_stage().items()}
        for job in jobs:
            part = scores[start : start + job.request.size]
            results.append((job, ScoredRequest(asked, model.step, part, {"wait": begun - job.begun, **took})))
            start += job.request.size
        self._row_seconds = (perf_counter() - begun) / start
        self.statistics.requests += len(jobs)
        self.statistics.rows += start
        self.statistics.batches += 1
        return results


def tried(work: Callable[[], T]) -> tuple[T, None] | tuple[None, Exception]:
    """Return (result, None) or (None, exception) of `work`, to be passed to the waiting caller."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - the waiting caller gets the exception
        return None, error


def check_step(step: object, model: ServedModel) -> None:
    """Raise `RequestError` if a request names a step that is not the model's; None: any step."""
    if step is not None and step != model.step:
        raise RequestError(
            404,
            f"step {str(step)[:40]} is not served",
            why="a request for a step is answered only with the scores of that step",
            fix=f"request step {model.step}, or omit the step",
        )


def _late(waited: float) -> SatrapError:
    return RequestError(
        504,
        f"the request's deadline passed after {waited * 1000:.0f} ms in the queue",
        why="the client no longer waits for the answer",
        fix="allow more time, send fewer requests, or start more servers",
    )


def _deliver(results: Sequence[tuple[_ScoringJob, ScoredRequest | BaseException]]) -> None:
    """Complete the futures; call it in their event loop."""
    for job, result in results:
        if job.future.done():
            continue
        if isinstance(result, BaseException):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
