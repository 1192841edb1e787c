"""`satrap checkpoint` on real runs, and `satrap train --resume` after processes were really killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from satrap.checkpoint import Background, read_checkpoint, verify, write_checkpoint
from satrap.data.encode.hashing import hash_ids
from satrap.errors import CheckpointError
from tests.checkpoint.states import make_checkpoint
from tests.cli.command import SATRAP, satrap
from tests.launch.runs import RECIPE, make_recipe

STEPPED = (
    RECIPE.replace("epochs: 2", "epochs: 3, patience: null") + "checkpoint: {every_steps: 10, keep: 3}\n"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert satrap("train", make_recipe(folder, STEPPED), "--output", folder / "run").code == 0
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def rows_of(place: Path) -> dict[tuple[str, int], tuple[bytes, bytes]]:
    return {
        (table, int(id_)): (weights.tobytes(), state.tobytes())
        for table, chunk in read_checkpoint(str(place)).chunks
        for id_, weights, state in zip(chunk.ids, chunk.weights, chunk.state, strict=True)
    }


def damage(place: Path) -> Path:
    file = next(place.glob("data-*/table-000.arrow"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    return file


def test_inspect(run: Path) -> None:
    shown: dict[str, Any] = json.loads(satrap("checkpoint", "inspect", run, "--json").out)
    steps = {name: entry["step"] for name, entry in shown.items()}
    assert steps["model"] == 48
    assert list(shown)[-1] == "model"
    assert all(steps[name] == int(name[5:]) for name in steps if name.startswith("step-"))
    assert shown["model"]["rows"] == {"user": 30, "item": 20}
    assert [entry["resumable"] for entry in shown.values()] == [True] * (len(shown) - 1) + [False]
    files = next((run / "model").glob("data-*"))
    assert shown["model"]["bytes"] == sum(p.stat().st_size for p in files.iterdir())
    text = satrap("checkpoint", "inspect", run / "model").out
    assert "model: step 48" in text
    assert "30 rows" in text


@pytest.mark.parametrize("steps", [None, [7], "7"])
def test_a_checkpoint_of_no_known_step_is_shown_without(steps: Any, tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path / "model"), replace(make_checkpoint(), settings={"steps": steps}))
    answer = satrap("checkpoint", "inspect", tmp_path / "model")
    assert answer.out.startswith("model: no step, "), answer


def test_verify_and_repair(run: Path) -> None:
    assert satrap("checkpoint", "verify", run).code == 0
    newest = max((run / "checkpoints").iterdir())
    file = damage(newest)
    answer = satrap("checkpoint", "verify", run)
    answer.assert_refused("1 of", "damaged", newest.name, "satrap checkpoint repair", code=1)
    assert file.name in answer.out
    assert json.loads(satrap("checkpoint", "verify", run, "--json").out)[newest.name]
    answer = satrap("checkpoint", "repair", run)
    assert answer.code == 0
    assert f"removed step {int(newest.name[5:])}" in answer.out
    assert not newest.exists()
    assert satrap("checkpoint", "verify", run).code == 0


def test_a_damaged_model_is_not_sent_to_snapshots_that_cannot_help(run: Path, tmp_path: Path) -> None:
    """Whatever the errors advise exists: each command that one of them names works, or none is named."""
    damage(run / "model")
    for command in (
        ["evaluate", run],
        ["checkpoint", "verify", run],
        ["checkpoint", "verify", run / "model"],
    ):
        answer = satrap(*command)
        answer.assert_refused("damaged", "restore a backup", code=1)
        assert "checkpoint repair" not in answer.err
    newest = max((run / "checkpoints").iterdir())
    damage(newest)
    with pytest.raises(CheckpointError) as caught:
        verify(str(newest))
    command = caught.value.fix.partition("satrap ")[2].partition(";")[0]
    assert command == f"checkpoint repair {run / 'checkpoints'}"
    assert satrap(*command.split()).code == 0
    shutil.rmtree(run / "checkpoints")
    satrap("checkpoint", "repair", run).assert_refused(
        "the folder has no snapshots", "restore a backup", code=1
    )


def test_deltas_are_shown_compacted_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Background, "start", lambda self, job: self._run(job))  # none is skipped
    recipe = make_recipe(
        tmp_path, STEPPED.replace("every_steps: 10", "every_steps: 1000, delta_every_steps: 6")
    )
    assert satrap("train", recipe, "--output", tmp_path / "run").code == 0
    series = tmp_path / "run" / "checkpoints"
    shown = json.loads(satrap("checkpoint", "inspect", series, "--json").out)
    newest = max(shown)
    deltas = {name: entry["delta"] for name, entry in shown.items()}
    assert [name for name, delta in deltas.items() if delta is None] == [min(shown)]
    assert deltas[newest]["number"] == len(shown) - 1 >= 1
    assert f"changes since {deltas[newest]['follows']}" in satrap("checkpoint", "inspect", series).out
    before = rows_of(series / newest)
    assert satrap("checkpoint", "export", series, "--output", tmp_path / "one", "--state").code == 0
    damage(series / deltas[newest]["follows"])
    satrap("checkpoint", "verify", series).assert_refused("2 of", "damaged", newest, code=1)
    damage(series / deltas[newest]["follows"])  # the same bit again: it is as it was
    answer = satrap("checkpoint", "compact", series, "--prune")
    assert answer.code == 0, answer.err
    assert "kept: 1 snapshot\n" in answer.out
    assert [path.name for path in series.iterdir() if path.name.startswith("step")] == [newest]
    assert rows_of(series / newest) == before
    assert satrap("checkpoint", "verify", series).code == 0
    assert satrap("checkpoint", "export", series, "--output", tmp_path / "two", "--state").code == 0
    for file in (tmp_path / "one").glob("*.parquet"):
        assert pq.read_table(file).equals(pq.read_table(tmp_path / "two" / file.name))


def test_nothing_good_is_left(run: Path) -> None:
    for place in (run / "checkpoints").iterdir():
        damage(place)
    before = sorted((run / "checkpoints").iterdir())
    satrap("checkpoint", "repair", run).assert_refused(
        "all snapshots are damaged; nothing was removed", code=1
    )
    assert sorted((run / "checkpoints").iterdir()) == before


def test_export_then_import_changes_nothing(run: Path, tmp_path: Path) -> None:
    before = rows_of(run / "model")
    answer = satrap("checkpoint", "export", run, "--output", tmp_path / "out", "--state")
    assert answer.code == 0, answer.err
    names = {"model.safetensors", "optimizer.safetensors", "user.parquet", "item.parquet"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == names
    user = pq.read_table(tmp_path / "out" / "user.parquet")
    assert user.num_rows == 30
    assert user.column_names == ["id", "weights", "state"]
    assert satrap("checkpoint", "export", run, "--output", tmp_path / "plain").code == 0
    plain = pq.read_table(tmp_path / "plain" / "user.parquet")
    assert plain.equals(user.select(["id", "weights"]))
    assert {("user", i) for i in user["id"].to_pylist()} == {key for key in before if key[0] == "user"}
    for table in ("user", "item"):
        assert satrap("checkpoint", "import", run, table, tmp_path / "out" / f"{table}.parquet").code == 0
    assert rows_of(run / "model") == before
    satrap("checkpoint", "export", run, "--output", tmp_path / "out").assert_refused("not empty")


def test_an_embedding_matrix_becomes_the_rows_of_integers(run: Path, tmp_path: Path) -> None:
    matrix = np.arange(24, dtype=np.float32).reshape(6, 4)
    save_file({"item.weight": matrix, "bias": np.zeros(3, np.float32)}, tmp_path / "pretrained.safetensors")
    before = rows_of(run / "model")
    assert satrap("checkpoint", "import", run, "item", tmp_path / "pretrained.safetensors").code == 0
    after = rows_of(run / "model")
    ids = hash_ids(np.arange(6))
    for row, id_ in enumerate(ids):
        weights, state = after["item", int(id_)]
        assert np.frombuffer(weights, np.float32).tolist() == matrix[row].tolist()
        assert not np.frombuffer(state, np.float32).any()
    assert {k: v for k, v in after.items() if k[1] not in ids.tolist()} == {
        k: v for k, v in before.items() if k[1] not in ids.tolist() or k[0] != "item"
    }
    assert satrap("evaluate", run, "--json").code == 0


def test_an_import_that_does_not_fit_changes_nothing(run: Path, tmp_path: Path) -> None:
    before = rows_of(run / "model")
    save_file({"w": np.zeros((3, 5), np.float32)}, tmp_path / "wide.safetensors")
    save_file(
        {"a": np.zeros((3, 4), np.float32), "b": np.zeros((3, 4), np.float32)}, tmp_path / "two.safetensors"
    )
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    for file, part in (
        ("wide.safetensors", "5 weights, but table 'item' has 4"),
        ("two.safetensors", "2 matrices"),
        ("bad.parquet", "cannot be read"),
        ("none.parquet", "does not exist"),
    ):
        satrap("checkpoint", "import", run, "item", tmp_path / file).assert_refused(part)
    satrap("checkpoint", "import", run, "no", tmp_path / "two.safetensors", "--tensor", "a").assert_refused(
        "no table"
    )
    assert rows_of(run / "model") == before


def test_forget_removes_a_row_everywhere(run: Path) -> None:
    id_ = int(hash_ids(["u3"])[0])
    places = [*(run / "checkpoints").iterdir(), run / "model"]
    assert all(("user", id_) in rows_of(place) for place in places)
    others = [{k: v for k, v in rows_of(place).items() if k != ("user", id_)} for place in places]
    answer = satrap("checkpoint", "forget", run, "user", "u3")
    assert answer.code == 0, answer.err
    assert [rows_of(place) for place in places] == others
    needle = np.uint64(id_).tobytes()
    assert not any(needle in f.read_bytes() for f in run.rglob("*.arrow"))
    for place in places:
        extra = read_checkpoint(str(place)).extra
        for name, tensor in extra.items():
            if name.startswith("ahead.") and name.endswith(".ids"):
                at = np.flatnonzero(tensor.numpy() == id_)
                assert not extra[name.replace("ids", "rows")][at].any()
    assert satrap("checkpoint", "verify", run).code == 0
    assert "had no such row" in satrap("checkpoint", "forget", run, "user", "u3").out
    satrap("checkpoint", "forget", run, "nobody", "u3").assert_refused("unknown table 'nobody'")
    satrap("checkpoint", "forget", run, "user", "x", "--hashed").assert_refused("is not an id")


def test_no_checkpoint(tmp_path: Path) -> None:
    for command in ("inspect", "verify", "repair"):
        satrap("checkpoint", command, tmp_path).assert_refused(code=1)


def start(recipe: Path, output: Path, *more: object) -> subprocess.Popen[bytes]:
    command = [SATRAP, "train", recipe, "--output", output, *more]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while not list(folder.glob(pattern)) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)


LONG = STEPPED.replace("epochs: 3", "epochs: 12")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert satrap("train", make_recipe(folder, LONG), "--output", folder / "run").code == 0
    return folder / "run" / "model"


def same_result(place: Path, expected: Path) -> None:
    assert rows_of(place) == rows_of(expected)
    own, other = (load_file(next(p.glob("data-*/model.safetensors"))) for p in (place, expected))
    assert own.keys() == other.keys()
    assert all(own[name].tobytes() == other[name].tobytes() for name in own)


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.chaos)])
def test_a_signal_then_resume(number: signal.Signals, undisturbed: Path, tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, LONG)
    process = start(recipe, tmp_path / "run")
    wait_for("run/checkpoints/step-*/manifest.json", tmp_path, process)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=250)
    assert process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL), err
    if number == signal.SIGTERM:
        assert b"stopped after step" in out
        assert f"satrap train --output {tmp_path / 'run'} --resume".encode() in out
        metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
        assert metrics["stopped"] == "stopped"
        assert (tmp_path / "run" / "checkpoints" / f"step-{metrics['steps']:08d}").exists()
    assert satrap("checkpoint", "verify", tmp_path / "run").code == 0
    answer = satrap("train", "--output", tmp_path / "run", "--resume")
    assert answer.code == 0, answer.err
    same_result(tmp_path / "run" / "model", undisturbed)


def test_nothing_to_resume_is_the_users_error(run: Path, tmp_path: Path) -> None:
    satrap("train", "--output", tmp_path / "none", "--resume").assert_refused("there is nothing to resume")
    satrap("train", "--output", run, "--resume").assert_refused("there is nothing to resume", "is complete")
    answer = satrap("train", "--resume")
    assert answer.code == 2
    assert "give a RECIPE" in answer.err
