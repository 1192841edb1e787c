"""A shadow is asked what was answered, after that, and never delays an answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from satrap.config.keys.serving import ServingKeys
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve import shadow as shadow_module
from satrap.serve.http.request import ScoreRequest
from satrap.serve.loadtest.connection import TargetServer
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.serve.shadow import UNDER_WAY, WINDOW, Compared, Shadow
from tests.serve.bodies import ARROW, INFER, binary_request, stream
from tests.serve.followed import eventually, snapshot, steps
from tests.serve.loadtest.stranger import Said, stranger
from tests.serve.requests import plain
from tests.serve.served import Served, served


@pytest.fixture
def both(snapshots: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Served, Shadow]]:
    """A server, another one with a later step, and the shadow by which the first asks the second."""
    monkeypatch.setattr(shadow_module, "ANSWER_SECONDS", 120.0)  # kernels may have to be compiled
    first, *_, last = steps(snapshots)
    patient = ServingKeys(deadline=60.0)  # a request that waited too long would be dropped
    with (
        served(snapshot(snapshots, first), patient) as one,
        served(snapshot(snapshots, last), patient) as other,
    ):
        shadow = Shadow([])
        shadow.target = TargetServer(*other.address)
        one.application.shadow = shadow
        yield one, other, shadow


def test_differences_are_those_of_both_answers(
    both: tuple[Served, Served, Shadow], rows: pd.DataFrame
) -> None:
    """In JSON, in Arrow and by the Open Inference Protocol."""
    one, other, shadow = both
    table = rows.copy()
    table["tags"] = [[row % 9, 3] for row in range(len(table))]
    table["price"] = table["price"].fillna(1.5)
    request = {"items": plain(table)}
    (_, wanted), (_, served_) = other.score(request), one.score(request)
    eventually(lambda: shadow.statistics.answers == 1)
    assert one.ask("/v1/score", stream(pa.Table.from_pandas(table, preserve_index=False)), ARROW)[0] == 200
    eventually(lambda: shadow.statistics.answers == 2)
    body, headers = binary_request(table)
    assert one.ask(INFER, body, headers)[0] == 200
    eventually(lambda: shadow.statistics.answers == 3)
    counters = shadow.statistics
    assert (counters.dropped, counters.failed, counters.step) == (0, 0, other.scorer.model.step)
    assert counters.predictions.keys() == served_["predictions"].keys()
    for name, found in counters.predictions.items():
        a, b = (np.array(answer["predictions"][name]) for answer in (served_, wanted))
        assert found.items == 3 * len(table)
        assert found.served == pytest.approx(a.mean(), abs=1e-5)
        assert found.shadow == pytest.approx(b.mean(), abs=1e-5)
        assert found.difference == pytest.approx(np.abs(a - b).mean(), abs=1e-5)
    assert counters.predictions["clicked_probability"].difference > 1e-4
    assert one.score({**request, "step": one.scorer.model.step})[0] == 200
    assert one.score({"items": {}})[0] == 422
    assert counters.answers == 3, "what asks for a step, and what has no scores, is not compared"


class Model:
    outputs = ("x",)
    columns = ("user",)


def offered(shadow: Shadow, count: int) -> None:
    answer = ScoredRequest(Model(), 1, np.full((2, 1), 0.5, np.float32))  # type: ignore[arg-type]

    async def offer() -> None:
        for _ in range(count):
            await shadow.offer(ScoreRequest(2, {}, {"user": [1, 2]}), b"{}", "application/json", answer)
        await shadow.disconnect()

    asyncio.run(offer())


def test_a_shadow_that_is_behind_is_left_out_and_counted() -> None:
    """The answers come only when all have been offered: so nobody has waited for one."""
    release = threading.Event()
    right = json.dumps({"predictions": {"x": [0.75, 0.25]}}).encode()

    def answer(number: int, _: str, __: bytes) -> Said:
        release.wait(60)
        return Said(503) if number == 0 else Said(body=right, headers={"Satrap-Step": "9"})

    shadow = Shadow([])
    offered(shadow, 3)
    assert shadow.statistics.dropped == 3, "it is not ready"
    with stranger(answer) as url:
        shadow.target = TargetServer.of(url)
        timer = threading.Timer(0.1, release.set)
        timer.start()
        offered(shadow, UNDER_WAY + 5)
    counters = shadow.statistics
    assert (counters.dropped, counters.answers, counters.failed) == (3 + 5 + 1, UNDER_WAY - 1, 0)
    assert counters.step == 9
    assert counters.predictions["x"] == Compared(2 * (UNDER_WAY - 1), 0.5, 0.5, 0.25)


@pytest.mark.parametrize(
    "said",
    [
        Said(422),
        Said(raw=b"?"),
        Said(body=b'{"predictions": {"y": [1, 2]}}'),
        Said(body=b'{"predictions": {"x": [1]}}'),
    ],
)
def test_what_cannot_be_compared_has_failed(said: Said) -> None:
    shadow = Shadow([])
    with stranger(lambda *_: said) as url:
        shadow.target = TargetServer.of(url)
        offered(shadow, 1)
    assert (shadow.statistics.failed, shadow.statistics.answers) == (1, 0)
    nobody = Shadow([])
    nobody.target = shadow.target
    offered(nobody, 1)
    assert nobody.statistics.failed == 1, "nobody is there any more"


def test_means_are_over_the_last_items() -> None:
    found = Compared()
    random = np.random.default_rng(0)
    served_, shadow = random.random((2, WINDOW // 2))
    for start in range(0, WINDOW // 2, 100):
        found.add(served_[start : start + 100], shadow[start : start + 100])
    assert found.served == pytest.approx(served_.mean())
    assert found.difference == pytest.approx(np.abs(served_ - shadow).mean())
    for _ in range(100):
        found.add(np.ones(WINDOW // 20), np.zeros(WINDOW // 20))
    assert found.items == WINDOW
    assert (found.served, found.shadow) == (pytest.approx(1, abs=0.01), pytest.approx(0, abs=0.01))


@contextmanager
def program(text: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have shadows run a program in place of `satrap serve`."""
    start = subprocess.Popen

    def instead(command: list[str], **options: Any) -> Any:
        return start([command[0], "-c", text], **options)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", instead)
        yield


def test_the_process_has_the_lowest_priority_and_ends_with_the_shadow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    text = (
        "import os, sys, time\n"
        "while os.nice(0) < 19: time.sleep(0.01)\n"
        "print('scores    http://127.0.0.1:81/v1/score', flush=True)\n"
        "sys.stdin.read(); print('ended')"
    )
    with program(text, monkeypatch):
        shadow = Shadow(["serve"], {"Authorization": "Bearer x"}, say=lines.append)
        with shadow:
            eventually(lambda: shadow.target is not None)
            assert shadow.target == TargetServer("127.0.0.1", 81, headers={"Authorization": "Bearer x"})
    assert shadow.target is None
    assert lines == ["shadow: scores    http://127.0.0.1:81/v1/score", "shadow: ended"]
    assert shadow._process.returncode == 0
