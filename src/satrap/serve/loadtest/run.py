"""Runs a load test: reads the rows, sends the requests, and makes the report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from satrap.data import Dataset
from satrap.errors import ConfigError
from satrap.launch.datasets import open_sources
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import scoring_recipe
from satrap.serve.loadtest.connection import TargetServer
from satrap.serve.loadtest.generator import Generator, RequestOutcome, arrivals
from satrap.serve.loadtest.offline import compared, scores_in
from satrap.serve.loadtest.report import Report
from satrap.serve.loadtest.rows import requests_of, rows_of
from satrap.serve.operator import PATH, authorization, base_of, call
from satrap.serve.scoring.example import schema_of

BODIES = 64
"""Maximum number of different requests, sent in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """The settings of a load test: requests to send, and how to check the answers.

    Args:
        url: server URL.
        sources: files with the model's columns.
        rate: average requests per second; arrival times are random.
        seconds: duration of the test.
        items: rows per request.
        context: columns whose value in the first row of a request applies to all its rows.
        run: folder of the served run, to compare answers with its offline scores; None: no comparison.
        tolerance: allowed difference of a score, absolute and relative.
        connections: maximum number of connections.
        timeout: seconds after which a request has failed.
        seed: random seed of the arrival times.
        key: file with the server's key; None: the server has no key.
    """

    url: str
    sources: Sequence[str]
    rate: float
    seconds: float = 10.0
    items: int = 100
    context: Sequence[str] = ()
    run: Path | None = None
    tolerance: float = 1e-6
    connections: int = 64
    timeout: float = 10.0
    seed: int = 0
    key: Path | None = None

    def __call__(self, say: Callable[[str], object] = lambda _: None) -> Report:
        """Send the requests, check the answers, and return the report.

        Args:
            say: called with a progress line before each long phase.

        Raises:
            ConfigError, DataError: the server cannot be reached or has another model, or the rows cannot be
                read.
        """
        model = call(self.url, "/v1/model", self.key)
        folder = None if self.run is None else RunFolder.open(self.run)
        columns = list(model["columns"])
        requests = requests_of(
            self._rows(model, folder),
            columns,
            items=min(self.items, model["limits"]["items"]),
            count=BODIES,
            context=self.context,
        )
        rollbacks = self._rollbacks()
        say(f"sending {self.rate:g} requests per second for {self.seconds:g} s")
        outcomes = self._sent(requests, read=scores_in if folder else lambda _: None)
        comparison = None
        if folder is not None:
            say("scoring the same rows offline")
            recipe = scoring_recipe(folder, ())
            comparison = compared(outcomes, requests, folder, recipe, self.tolerance)
        return Report(
            outcomes,
            self.rate,
            self.seconds,
            max(len(next(iter(request["items"].values()))) for request in requests),
            self._rollbacks() - rollbacks,
            comparison,
            self.tolerance,
        )

    def _rows(self, told: dict[str, Any], folder: RunFolder | None) -> Dataset:
        if folder is None:
            return rows_of(self.sources, told["columns"])
        recipe = folder.recipe()
        return open_sources(recipe, schema_of(folder, recipe), self.sources)

    def _sent(self, requests: Sequence[Any], read: Callable[[bytes], Any]) -> list[RequestOutcome]:
        target = TargetServer.of(base_of(self.url), authorization(self.key))
        generator = Generator(
            target,
            [target.post("/v1/score", orjson.dumps(request)) for request in requests],
            arrivals(self.rate, self.seconds, self.seed),
            connections=self.connections,
            timeout=self.timeout,
            read=read,
        )
        with asyncio.Runner(loop_factory=_loop()) as runner:
            return runner.run(generator.run())

    def _rollbacks(self) -> int:
        """Return how often the server was rolled back."""
        try:
            return int(call(self.url, PATH, self.key).get("rollbacks", 0))
        except ConfigError:  # the server does not follow a run
            return 0


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
