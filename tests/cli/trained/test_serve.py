"""`satrap serve` as users start it: what it prints, what curl gets, how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from satrap.launch.folder.run_folder import RunFolder
from satrap.runtime.numba_cache import COMPILING
from tests.cli.command import satrap
from tests.cli.serving import started
from tests.serve.served import COLUMNS, frame, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("served"))


def ask(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    host, path = url.removeprefix("http://").split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", f"/{path}", body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.cluster
def test_a_run_is_served_and_ends_without_a_failed_request(run: RunFolder) -> None:
    body = satrap("request", run.path, "--items", 5).out.encode()
    with started(run.path, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--drain", 2) as (
        server,
        lines,
    ):
        assert lines["serving"].startswith("books, step ")
        url, metrics = lines["scores"], lines["metrics"]
        status, answer = ask(url, body)
        assert status == 200
        step, scores = json.loads(answer)["step"], json.loads(answer)["predictions"]
        assert len(scores["clicked_probability"]) == 5
        text = ask(metrics)[1].decode()
        assert f"satrap_serve_step {float(step)}" in text
        assert 'satrap_serve_answers_total{status="200"} 1.0' in text
        failed: list[int] = []
        answered = 0
        stopping = threading.Event()

        def load() -> None:
            nonlocal answered
            while not stopping.is_set():
                if ask(url, body)[0] != 200:
                    failed.append(1)
                answered += 1

        thread = threading.Thread(target=load)
        thread.start()
        server.send_signal(signal.SIGTERM)
        ready = url.replace("/v1/score", "/ready")
        while ask(ready)[0] == 200:
            pass
        before = answered
        while answered < before + 20:  # it is not ready, and answers
            pass
        stopping.set()
        thread.join()
        assert failed == []
        out, err = server.communicate(timeout=60)
        assert (server.returncode, err.removeprefix(f"{COMPILING}\n")) == (0, "")
        assert out.endswith("stopped: all requests were answered\n")


@pytest.mark.cluster
def test_a_shadow_scores_what_was_answered(run: RunFolder, tmp_path: Path) -> None:
    """The shadow is the same model: so there is no difference, and each answer counts."""
    body = satrap("request", run.path, "--items", 5).out.encode()
    arguments = [run.path, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--shadow", run.path]
    with started(*arguments) as (server, lines):
        url, metrics = lines["scores"], lines["metrics"]

        def told(name: str) -> float:
            values = [
                line.split()[1] for line in ask(metrics)[1].decode().splitlines() if line.startswith(name)
            ]
            return float(values[0]) if values else 0.0

        until = time.monotonic() + 400  # of the lowest priority, it may have to compile
        while told("satrap_serve_shadow_answers_total") < 3:
            assert time.monotonic() < until
            assert ask(url, body)[0] == 200
        assert told("satrap_serve_shadow_step") == told("satrap_serve_step") == 8
        assert told('satrap_serve_shadow_difference{prediction="clicked_probability"}') < 1e-6
        mean = told('satrap_serve_shadow_mean{prediction="clicked_probability"}')
        assert (
            0
            < mean
            == pytest.approx(told('satrap_serve_shadow_served_mean{prediction="clicked_probability"}'))
        )
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, err.removeprefix(f"{COMPILING}\n")) == (0, "")
        assert "shadow: stopped: all requests were answered" in out
    satrap("serve", run.path, "--shadow", tmp_path).assert_refused("not a run folder")


@pytest.mark.cluster
def test_a_client_of_the_open_inference_protocol_is_content(run: RunFolder) -> None:
    """`tritonclient`, in a process of its own: it patches what others use."""
    program = """
import sys
import numpy as np
import tritonclient.http as triton
client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("books")
metadata = client.get_model_metadata("books")
columns = {
    "user": np.array([b"u1"], object), "book": np.array([[5], [6], [7]], np.int64),
    "tags": np.array([[1, 2]], np.int32), "words": np.array([b"w1|w2"], object),
    "time": np.array([b"2024-01-31 08:05:30"], object), "age": np.array([30], np.float32),
    "price": np.array([3.5]), "picture": np.array([[0.1, 0.2, 0.3]]),
}
assert sorted(one["name"] for one in metadata["inputs"]) == sorted(columns)
kinds = {"O": "BYTES", "i8": "INT64", "i4": "INT32", "f4": "FP32", "f8": "FP64"}
def inputs(binary):
    for name, values in columns.items():
        kind = kinds["O" if values.dtype == object else values.dtype.str[1:]]
        tensor = triton.InferInput(name, list(values.shape), kind)
        tensor.set_data_from_numpy(values, binary_data=binary)
        yield tensor
found = []
for binary in (True, False):
    asked = [triton.InferRequestedOutput("clicked_probability", binary_data=binary)]
    answer = client.infer("books", list(inputs(binary)), outputs=asked, request_id="7")
    assert answer.get_response()["model_version"] == metadata["versions"][0]
    found.append(answer.as_numpy("clicked_probability"))
assert found[0].shape == (3,) and (found[0] == found[1]).all()
print(found[0].tolist())
"""
    with started(run.path, "--listen", "127.0.0.1:0") as (_, lines):
        address = lines["scores"].removeprefix("http://").partition("/")[0]
        done = subprocess.run(
            [sys.executable, "-c", program, address], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        columns: dict[str, Any] = {
            "user": "u1",
            "tags": [1, 2],
            "words": "w1|w2",
            "time": "2024-01-31 08:05:30",
            "age": 30,
            "price": 3.5,
            "picture": [0.1, 0.2, 0.3],
        }
        request = {"context": columns, "items": {"book": [5, 6, 7]}}
        status, answer = ask(lines["scores"], json.dumps(request).encode())
        assert status == 200
        expected = json.loads(answer)["predictions"]["clicked_probability"]
        assert json.loads(done.stdout) == pytest.approx(expected, abs=1e-6)


def test_a_request_is_printed(run: RunFolder, tmp_path: Path) -> None:
    request = json.loads(satrap("request", run.path).out)
    assert sorted([*request["context"], *request["items"]]) == sorted(COLUMNS)
    assert {len(values) for values in request["items"].values()} == {3}
    rows = frame(4, seed=3)[COLUMNS]
    rows["user"], rows["time"] = "u4", "2024-01-31 08:05:30"
    rows.to_parquet(tmp_path / "rows.parquet")
    request = json.loads(satrap("request", run.path, "--input", tmp_path / "rows.parquet", "--items", 9).out)
    assert request["context"] == {"user": "u4", "time": "2024-01-31 08:05:30"}
    assert len(request["items"]["book"]) == 4
