"""Runs whose network is spread over a mesh, from a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from tests.launch.runs import frame, make_recipe
from tests.support.clusters import COLLECTIVE, SERVERS, Kill
from tests.support.snapshots import saved

DENSE = "dense={mesh: {data: 2, tensor: 2}, sharded: true, optimizer: {name: adam, lr: 0.01}}"

SHORT = "mesh.pipeline is 2 with 2 stages each, but DNN has 2 layers to split at"

TOO_FEW = "1 microbatches are too few for 2 stages in the schedule 1f1b"


def assert_near(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Weights and rows of two runs are equal but for rounding."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, bytes):
            one, other = (np.frombuffer(each[name], np.float32) for each in (found, expected))
        else:
            assert found[name]["ids"] == value["ids"]
            one, other = (
                np.array([np.frombuffer(row, np.float32) for row in each[name]["weights"]])
                if isinstance(value["weights"][0], bytes)
                else np.array(each[name]["weights"])
                for each in (found, expected)
            )
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "exchange",
    [pytest.param(SERVERS, id="servers", marks=pytest.mark.slow), pytest.param(COLLECTIVE, id="collective")],
)
def test_a_run_over_a_mesh_leaves_the_model_of_two_workers(tmp_path: Path, exchange: list[str]) -> None:
    path = make_recipe(tmp_path, rows=frame(801))
    common, said = [*exchange, "training.mode=sync"], list[str]()
    two = launch.train(load(path, [*common, "cluster.workers=2"]), str(tmp_path / "two"))
    four = launch.train(load(path, [*common, DENSE]), str(tmp_path / "four"), notice=said.append)
    assert_near(saved(tmp_path / "four"), saved(tmp_path / "two"))
    assert four.test == pytest.approx(two.test, abs=1e-5)
    assert four.result.samples == two.result.samples
    mesh = "mesh: 2 data x 2 tensor = 4 workers, weights in 2 parts; sharded layers: deep.0 (alone)"
    assert mesh in said
    assert launch.evaluate(four.folder)["auc"] == pytest.approx(four.test["auc"], abs=1e-6)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mesh", "sharded", "words"),
    [
        pytest.param("{pipeline: 2}", "false", "1 data x 2 pipeline = 2 workers; ", marks=pytest.mark.slow),
        pytest.param(
            "{data: 2, pipeline: 2}",
            "true",
            "2 data x 2 pipeline = 4 workers, weights in 2 parts; ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "{tensor: 2, pipeline: 2}",
            "false",
            "1 data x 2 tensor x 2 pipeline = 4 workers; ",
            marks=pytest.mark.slow,
        ),
        ("{pipeline: 2}", "false", "1 data x 2 pipeline of 2 stages = 2 workers; "),
    ],
)
def test_a_run_in_stages_leaves_the_model_of_whole_networks(
    tmp_path: Path, mesh: str, sharded: str, words: str
) -> None:
    path, said = make_recipe(tmp_path, rows=frame(801)), list[str]()
    common = [*SERVERS, "training.mode=sync", "training.epochs=1", "model.hidden=[16, 6, 2]"]
    last = "deep.2 (102) | deep.4 (14) | head (3)" if "of 2" in words else "deep.2 deep.4 head (119)"
    words += f"stages: deep.0 (160) | {last}"
    words += "; sharded layers: deep.0 (alone), deep.2 (column), deep.4 (row)" * ("tensor" in mesh)
    shares = f"cluster.workers={words[0]}"
    one = launch.train(load(path, [*common, shares]), str(tmp_path / "one"))
    settings = [*common, f"dense.mesh={mesh}", f"dense.sharded={sharded}", "dense.microbatches=3"]
    settings += ["dense.schedule=looped_bfs"] * ("of 2" in words)
    two = launch.train(load(path, settings), str(tmp_path / "two"), notice=said.append)
    assert_near(saved(tmp_path / "two"), saved(tmp_path / "one"))
    assert two.test == pytest.approx(one.test, abs=1e-5)
    assert f"mesh: {words}" in said
    assert launch.evaluate(two.folder)["auc"] == pytest.approx(two.test["auc"], abs=1e-6)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_killed_worker_of_a_mesh_brings_all_back_and_the_model_is_the_same(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(801))
    settings = [*SERVERS, "training.mode=sync", "checkpoint.every_steps=3", DENSE]
    plain = launch.train(load(path, settings), str(tmp_path / "plain"))
    killer = Kill()
    outcome = launch.train(load(path, settings), str(tmp_path / "run"), observers=[killer])
    assert killer.killed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert outcome.test == plain.test
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["model.hidden=[7, 4]"], "mesh.tensor 2 does not divide the 7 outputs of deep.0"),
        (["dense.mesh.pipeline=3"], "mesh.pipeline is 3, but DNN has 2 layers to split at"),
        (["dense={mesh: {pipeline: 2}, schedule: looped_bfs}"], SHORT),
        (["dense.mesh.pipeline=2", "dense.microbatches=1"], TOO_FEW),
        (
            ["dense.mesh.pipeline=2", "dense.stages=[haed]"],
            "stages names 'haed', but no stage can begin there",
        ),
        (["model.batch_norm=true"], "mesh.tensor cannot be combined with batch normalization: deep.1"),
    ],
)
def test_what_cannot_be_divided_is_an_error_before_anything_starts(
    tmp_path: Path, settings: list[str], what: str
) -> None:
    mesh = [] if any("pipeline" in one for one in settings) else ["dense.mesh.tensor=2"]
    recipe = load(make_recipe(tmp_path), [*SERVERS, *mesh, *settings])
    with pytest.raises(ConfigError) as caught:
        launch.train(recipe, str(tmp_path / "run"))
    assert caught.value.what == what
    assert caught.value.where == f"--set {(mesh or settings)[-1].split('=')[0]}"
    assert not (tmp_path / "run").exists()


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_run_goes_on_over_another_mesh_and_in_one_process(tmp_path: Path) -> None:
    """As the user's page says: change the mesh and resume; what is left to learn is learnt the same."""
    path = make_recipe(tmp_path, rows=frame(801))
    common = [
        "training.mode=sync",
        "checkpoint.every_steps=5",
        "training.patience=null",
        "data.global_batch=true",
        "data.shuffle=false",
    ]
    one = launch.train(load(path, [*common, "training.epochs=3"]), str(tmp_path / "one"))
    tensor = [*common, *SERVERS, "dense.mesh.tensor=2", "dense.layout={deep.0: column, head: row}"]
    said = list[str]()
    launch.train(load(path, [*tensor, "training.epochs=1"]), str(tmp_path / "run"), notice=said.append)
    assert "mesh: 1 data x 2 tensor = 2 workers; sharded layers: deep.0 (column), head (row)" in said
    shares = [*common, *SERVERS, "dense.mesh.data=2", "dense.sharded=true", "training.epochs=2"]
    launch.train(load(path, shares), str(tmp_path / "run"), resume=True)
    alone = launch.train(load(path, [*common, "training.epochs=3"]), str(tmp_path / "run"), resume=True)
    assert alone.result.samples == one.result.samples
    assert alone.test == pytest.approx(one.test, abs=1e-5)
    assert_near(saved(tmp_path / "run"), saved(tmp_path / "one"))


@pytest.mark.parametrize(
    ("layout", "match"),
    [
        ("{deep.7: column}", "names 'deep.7', which is not a linear layer"),
        ("{deep.0: column, head: column}", "divide the 1 outputs of head"),
        ("{deep.0: diagonal}", "dense.layout"),
    ],
)
def test_a_wrong_layout_is_refused_with_its_line(tmp_path: Path, layout: str, match: str) -> None:
    path = make_recipe(tmp_path, rows=frame(200))
    with pytest.raises(ConfigError, match=match) as caught:
        launch.train(
            load(path, [*SERVERS, "dense.mesh.tensor=2", f"dense.layout={layout}"]), str(tmp_path / "run")
        )
    assert "dense.layout" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_a_network_computes_may_not_change_in_a_resume(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(200))
    launch.train(load(path, ["checkpoint.every_steps=1", "training.epochs=1"]), str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"differs from the run's recipe in dense\.precision"):
        launch.train(load(path, ["dense.precision=bfloat16"]), str(tmp_path / "run"), resume=True)
