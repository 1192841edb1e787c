"""A run in several processes: the same model as in one, and errors as from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pytest
from safetensors.numpy import load_file

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError, DataError
from tests.launch.runs import RECIPE, frame, lines_of, make_recipe

SERVERS = [
    "cluster.exchange=servers",
    "cluster.wire.forward=float32",
    "cluster.wire.backward=float32",
]


def saved(folder: Path) -> dict[str, Any]:
    """Every weight and row of a run."""
    (data,) = (folder / "model").glob("data-*")
    content: dict[str, Any] = {k: v.tobytes() for k, v in load_file(data / "model.safetensors").items()}
    for path in sorted(data.glob("table-*.arrow")):
        with pyarrow.ipc.open_stream(path) as stream:
            content[path.name] = stream.read_all().combine_chunks().to_pydict()
    return content


def test_a_worker_and_two_shards_leave_the_folder_of_one_process(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    said: list[str] = []
    here = launch.train(load(path), str(tmp_path / "here"))
    there = launch.train(
        load(path, [*SERVERS, "cluster.shards=2"]), str(tmp_path / "there"), notice=said.append
    )
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
    assert there.test == here.test
    assert there.result.history == here.result.history
    assert there.result.staleness == here.result.staleness
    metrics = json.loads((tmp_path / "there" / "metrics.json").read_text())
    assert sum(metrics["traffic"]["shard_rows"]) == 50
    events = [line["event"] for line in lines_of(tmp_path / "there" / "metrics.jsonl")]
    assert events == [line["event"] for line in lines_of(tmp_path / "here" / "metrics.jsonl")]
    for name in ("shard 0", "shard 1"):
        assert any(line.startswith(f"[{name}] satrap shard ready on 127.0.0.1:") for line in said)
    assert launch.evaluate(there.folder) == there.test


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
def test_two_workers_learn_what_one_learns(tmp_path: Path, mode: str) -> None:
    settings = [f"training.mode={mode}", "cluster.workers=2", "cluster.shards=2", "data.batch_size=50"]
    path = make_recipe(tmp_path, rows=frame(6001))
    alone = launch.train(load(path), str(tmp_path / "alone"))
    outcome = launch.train(load(path, [*SERVERS, *settings]), str(tmp_path / "run"))
    assert outcome.result.samples == alone.result.samples == 2 * 4801
    assert outcome.test["samples"] == alone.test["samples"] == 600
    assert outcome.test["auc"] == pytest.approx(alone.test["auc"], abs=0.05)
    assert launch.evaluate(outcome.folder)["auc"] == pytest.approx(outcome.test["auc"], abs=1e-3)


@pytest.mark.cluster
def test_bad_data_in_a_worker_is_the_users_error(tmp_path: Path) -> None:
    """Found only while reading: the error comes from another process, with its place."""
    rows = frame(300).astype({"price": object, "clicked": object})
    rows.loc[250, "clicked"] = "perhaps"
    recipe = load(make_recipe(tmp_path, RECIPE.replace("[log1p, standardize]", "log1p"), rows), SERVERS)
    with pytest.raises(DataError, match="perhaps") as caught:
        launch.train(recipe, str(tmp_path / "run"))
    assert "rows.csv" in caught.value.where
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_with_the_recipe_is_found_before_any_process_starts(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    with pytest.raises(ConfigError, match="nonsense") as caught:
        launch.train(load(path, [*SERVERS, "model.name=nonsense"]), str(tmp_path / "run"))
    assert caught.value.where == "--set model.name"
    with pytest.raises(ConfigError, match="admission is not supported with cluster"):
        launch.train(load(path, [*SERVERS, "embedding.admission.min_count=2"]), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
