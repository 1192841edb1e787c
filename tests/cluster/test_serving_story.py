"""Serving from end to end, as its users see it: ten steps, each with real processes."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from satrap.checkpoint import Series
from satrap.checkpoint.feed import FEED
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.errors import CheckpointError
from satrap.train.publisher import FEED_CUT
from tests.cli.command import SATRAP, Answer, process
from tests.cli.serving import started
from tests.launch.runs import lines_of
from tests.serve.followed import eventually, scores_of
from tests.support.balancer import HAPROXY, balancer
from tests.support.clients import Clients
from tests.support.logs import RedisServer, free_port, redis_server
from tests.support.scraping import scrape

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian: package haproxy)"),
]

RECIPE = """\
data:
  stream: {{redis: {{url: "{url}", streams: [visits]}}, time: at, wait: 50ms}}
  batch_size: 64
labels: [clicked]
features: {{user: {{dim: 4}}, item: {{dim: 4}}}}
model: {{name: dnn, hidden: [8]}}
training: {{mode: sync}}
cluster: {{metrics_port: {port}}}
checkpoint: {{every_steps: 20}}
publish: {{every: 200ms, full_every: 15, keep: 100}}
"""

UPDATES = 100
"""Versions that come while requests are answered."""
SECONDS = 300
"""How long to wait for what does come on any machine."""
ROWS = pd.DataFrame({"user": [f"u{n % 7}" for n in range(20)], "item": range(20)})
"""What is asked for."""


class Visitors:
    """Adds visits to a log, some each tenth of a second, until the block ends. They say 5 seconds pass.

    Attributes:
        count: visits added.
    """

    def __init__(self, log: RedisServer) -> None:
        self._log, self.count = log, 0
        self._random, self._stopping = np.random.default_rng(0), threading.Event()
        self._thread = threading.Thread(target=self._visit)

    def __enter__(self) -> Visitors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Add no more."""
        self._stopping.set()
        self._thread.join()

    def _visit(self) -> None:
        taste = self._random.normal(size=(7, 20))
        for _ in range(10**6):
            users, items = self._random.integers(0, 7, 64), self._random.integers(0, 20, 64)
            clicked = taste[users, items] + self._random.normal(size=64) > 0
            columns = {
                "user": [f"u{user}" for user in users],
                "item": items.tolist(),
                "clicked": clicked.astype(int).tolist(),
                "at": [1_700_000_000 + 5 * (self.count + n) for n in range(64)],
            }
            self._log.add("visits", columns)
            self.count += 64
            if self._stopping.wait(0.1):
                return


class Run:
    """A run that follows the log, as a process.

    Attributes:
        folder: of the run.
        feed: what it publishes.
    """

    def __init__(self, folder: Path, log: RedisServer) -> None:
        port = free_port()
        (folder / "stream.yaml").write_text(RECIPE.format(url=log.url, port=port), encoding="utf-8")
        self._recipe, self.folder, self._metrics = (
            folder / "stream.yaml",
            folder / "live",
            f"127.0.0.1:{port}",
        )
        self.feed = Series(str(self.folder / "feed"))
        self.start(self._recipe, "--output", self.folder)

    def start(self, *arguments: object) -> None:
        with self._recipe.with_name("train.log").open("ab") as log:
            words = [SATRAP, "train", *map(str, arguments), "--follow"]
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def resume(self) -> None:
        self.start("--output", self.folder, "--resume")

    def after(self, step: int, count: int = 1) -> int:
        """Wait for so many versions after a step; return the step of the last of them."""

        def later() -> list[int]:
            assert self.process.poll() is None, self._recipe.with_name("train.log").read_text()
            return [one for one in self.feed.steps() if one > step]

        eventually(lambda: len(later()) >= count, SECONDS)
        return later()[count - 1]

    def read(self, count: int) -> None:
        """Wait until so many events, or more, have been learnt from."""
        eventually(lambda: scrape(self._metrics)["satrap_worker_samples_total"] >= count, SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 0


def post(url: str, body: Any) -> tuple[int, Any]:
    asked = urllib.request.Request(url, body if isinstance(body, bytes) else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(answer.status), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def metric(url: str, name: str) -> float:
    """Return a metric without labels of a server."""
    return float(scrape(url.removeprefix("http://").partition("/")[0])[name])


def done(*arguments: object) -> Answer:
    """Run a command that succeeds."""
    answer = process(*arguments)
    assert answer.code == 0, answer
    return answer


@contextmanager
def serving(place: Path, port: int, *more: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Serve what a run publishes, under an address, with metrics; `place`: the run, or its feed."""
    where = ["--listen", f"127.0.0.1:{port}", "--metrics", "127.0.0.1:0", "--drain", 1]
    with started(place, "--follow", *where, *more) as found:
        yield found


def test_serving_from_end_to_end(tmp_path: Path) -> None:
    with ExitStack() as stack:
        log = stack.enter_context(redis_server(tmp_path))
        visitors = stack.enter_context(Visitors(log))
        run = Run(tmp_path, log)
        stack.callback(run.kill)
        first = run.after(0, 3)
        port, *ports = (free_port() for _ in range(3))
        places = run.folder, run.folder / "feed"  # the second one knows only what is published
        servers = [stack.enter_context(serving(*one)) for one in zip(places, ports, strict=True)]
        stack.enter_context(balancer(tmp_path, port, ports))
        lines = servers[0][1]
        url, address = lines["scores"], f"http://127.0.0.1:{ports[0]}"

        # 1. One screen says what is served, where.
        assert {"serving", "scores", "metrics", "try it"} <= lines.keys()
        # 2. A request is printed, and answered with the scores of `satrap predict`.
        as_predicted(run, url, tmp_path)
        # 3. Mistakes are answers that name field and limit.
        refusing(url)
        # 4. A load test says what was measured, and checks each score.
        ROWS.to_parquet(tmp_path / "asked.parquet")
        asked = ["--input", tmp_path / "asked.parquet", "--rate", 50, "--seconds", 2, "--run", run.folder]
        assert json.loads(done("bench", "serve", address, *asked, "--json").out)["right"] is True
        # 5. The step rises while events come, and each hour is measured before it is learnt.
        assert run.after(first, 3) > first
        eventually(lambda: metric(lines["metrics"], "satrap_serve_step") > first, SECONDS)

        with Clients(("127.0.0.1", port), {"items": ROWS.to_dict("list")}, 4) as load:
            # 6. A hundred versions come under load.
            last = run.after(run.feed.steps()[-1], UPDATES)
            load.until_at_least(last)
            # 7. The run is killed: answers go on, and it goes on as well, with deltas.
            load.phase = "killed run"
            past = go_on(run, load)
            # 8. A damaged version is refused by name; a later one with all rows heals it.
            load.phase = "damaged version"
            healed(run, load, lines["metrics"], address)
            # 9. An operator goes back and forward again.
            load.phase = "rollback"
            back_and_forth(load, address)
            # 10. One of two servers is drained, and nobody notices.
            load.phase = "drain"
            servers[1][0].send_signal(signal.SIGTERM)
            assert servers[1][0].wait(SECONDS) == 0
            load.some_more(60)
            load.phase = "one server"
            load.until_at_least(run.after(run.feed.steps()[-1], 2))
        with_shadow(run)
        visitors.leave()
        run.read(visitors.count)
        run.end()
        assert load.answers
        answered = {step for step, _ in load.answers}
        wanted = [
            scores_of(feed, sorted(answered.intersection(feed.steps())), ROWS) for feed in (past, run.feed)
        ]
        assert answered <= wanted[0].keys() | wanted[1].keys()
        assert load.mixed(*wanted) == 0
        result = json.loads((run.folder / "metrics.json").read_text())
        assert result["samples"] == visitors.count, "each event once"
        assert any(line["event"] == "event_hour" for line in lines_of(run.folder / "metrics.jsonl"))


def as_predicted(run: Run, url: str, folder: Path) -> None:
    body = done("request", run.folder, "--items", 4).out
    status_, answer = post(url, body.encode())
    assert status_ == 200
    request = json.loads(body)
    rows = pd.DataFrame(request["items"]).assign(**request["context"])
    rows.to_parquet(folder / "four.parquet")
    files = ["--input", folder / "four.parquet", "--output", folder / "scores.parquet"]
    done("predict", run.folder, "--step", answer["step"], *files)
    expected = pd.read_parquet(folder / "scores.parquet")["clicked_probability"]
    np.testing.assert_allclose(answer["predictions"]["clicked_probability"], expected, rtol=0, atol=1e-6)


def refusing(url: str) -> None:
    for request, code, words in (
        ({"context": {"usr": "u1"}, "items": {"item": [1]}}, 422, ["usr", "user"]),
        ({"context": {"user": "u1"}, "items": {"item": [1] * 10**6}}, 422, ["1,000,000", "10,000"]),
        ({"context": {"user": "u1"}, "items": {"item": [[1]]}}, 422, ["item"]),
    ):
        status_, answer = post(url, request)
        assert status_ == code, answer
        assert all(word in json.dumps(answer) for word in words), answer


def go_on(run: Run, load: Clients) -> Series:
    """Kill the run and resume it; return what it had published, of which steps will be taken again."""
    run.kill()
    load.some_more(60)
    snapshots = Series(str(run.folder / "checkpoints"))
    snapshot = snapshots.latest()
    assert snapshot is not None
    past = Series(str(shutil.copytree(run.folder / "feed", run.folder.with_name("past"))))
    begun = time.time()
    run.resume()
    new: list[Manifest] = []

    def resumed() -> bool:
        with contextlib.suppress(CheckpointError):  # it removes the versions of steps that it takes again
            found = [run.feed.manifest(step) for step in run.feed.steps() if step > snapshot]
            new[:] = [one for one in found if one.settings[FEED]["time"] > begun]
        return len(new) > 2

    eventually(resumed, SECONDS)
    cut = read_manifest(Storage(snapshots.place(snapshot))).settings.get(FEED_CUT)
    newest = max(step for step in past.steps() if step <= snapshot)
    continues = past.manifest(newest).settings[FEED]["cut"] == cut
    assert [one.delta is not None for one in new[:3]] == [continues, True, True]
    load.until_at_least(run.after(run.feed.steps()[-1]))
    return past


def healed(run: Run, load: Clients, metrics: str, address: str) -> None:
    done("versions", "pin", address)
    refused = metric(metrics, "satrap_serve_refused_versions_total")
    bad = run.after(run.feed.steps()[-1])
    place = Storage(run.feed.place(bad))
    manifest = read_manifest(place)
    name = next(file for file, entry in manifest.files.items() if entry.table)
    path = Path(place.path(f"{manifest.data}/{name}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run.after(bad)
    done("versions", "release", address)
    eventually(lambda: metric(metrics, "satrap_serve_refused_versions_total") > refused, SECONDS)
    eventually(lambda: metric(metrics, "satrap_serve_step") > bad, SECONDS)
    full = (step for step in run.feed.steps() if step > bad and run.feed.manifest(step).delta is None)
    assert next(full, None) is not None
    load.some_more(60)


def back_and_forth(load: Clients, address: str) -> None:
    listed: dict[str, Any] = {}

    def served() -> int:
        return int(post(f"{address}/v1/score", {"items": ROWS.to_dict("list")})[1]["step"])

    def kept() -> bool:
        listed.update(json.loads(done("versions", "list", address, "--json").out))
        return bool(listed["earlier"])

    eventually(kept, SECONDS)
    to = max(listed["earlier"])
    assert f"step {to} is served" in done("versions", "rollback", address, "--to", to).out
    assert served() == to
    load.some_more(60)
    done("versions", "release", address)
    eventually(lambda: served() > listed["step"], SECONDS)


def with_shadow(run: Run) -> None:
    with serving(run.folder, 0, "--shadow", run.folder) as (_, lines):

        def answered() -> bool:
            assert post(lines["scores"], {"items": ROWS.to_dict("list")})[0] == 200
            return metric(lines["metrics"], "satrap_serve_shadow_answers_total") > 2

        eventually(answered, SECONDS)
