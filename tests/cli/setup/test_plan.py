import json
from pathlib import Path

import pytest

from satrap.tools.plan.simulate.costs import Calibration
from tests.cli.command import process, satrap
from tests.launch.runs import make_recipe
from tests.tools.plan.simulate.runs import calibration

GOODBOOKS = Path(__file__).parents[3] / "examples" / "recipes" / "goodbooks.yaml"


def test_plan_of_real_data() -> None:
    answer = process("plan", GOODBOOKS, "--workers", 2, "--batches", 4, "--set", "data.shuffle=false")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "5 tables, 2 workers; counted over 2 steps of 2 x 2,048 samples"
    assert [line.split()[0] for line in lines[3:8]] == ["user", "book", "authors", "language", "year"]
    for placement in ("as planned", "row_wise", "table_wise", "replicated"):
        assert sum(line.startswith(f"{placement} ") for line in lines) == 1
    assert "a lower bound" in lines[-1]


def test_plan_as_json_with_rows_of_a_run_and_given_ones(tmp_path: Path) -> None:
    recipe, run = make_recipe(tmp_path), tmp_path / "run"
    trained = satrap("train", recipe, "--output", run, "--set", "training.steps=3")
    assert trained.code == 0, trained.err
    rows = json.loads(satrap("checkpoint", "inspect", run, "--json").out)["model"]["rows"]
    answer = satrap("plan", recipe, "--json", "--workers", 3, "--run", run, "--rows", "item=5e2")
    found = json.loads(answer.out)
    tables = found["tables"]
    assert (tables["user"]["rows"], tables["user"]["rows_from"]) == (rows["user"], "run")
    assert (tables["item"]["rows"], tables["item"]["rows_from"]) == (500, "given")
    fitting = [one["seconds"] for one in found["uniform"].values() if one["fits"]]
    assert len(fitting) == 3
    assert found["planned"]["seconds"] <= min(fitting)
    assert len(found["planned"]["sent_bytes"]) == 3


def test_tables_that_workers_hold_besides_shards(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    words = ["plan", recipe, "--workers", 2, "--rows", "user=20000", "--set", "cluster.exchange=servers"]
    lines = satrap(*words).out.splitlines()
    at = lines.index("with shard servers (cluster.exchange: servers), in mode hybrid:")
    assert lines[at + 2 : at + 4] == [
        "user   shards        many ids: about 20,000, more than 10,000",
        "item   every worker  few ids: about 20",
    ]
    found = json.loads(satrap(*words, "--json").out)["with_shards"]
    assert found["item"] == {"replicated": True, "why": "few ids: about 20"}
    assert "with shard servers" not in satrap(*words, "--set", "training.mode=sync").out


def test_one_worker_has_nothing_to_place(tmp_path: Path) -> None:
    answer = satrap("plan", make_recipe(tmp_path), "--memory", "1GiB")
    assert answer.code == 0
    assert "one worker holds all rows, so there is no choice; the rows need" in answer.out
    assert "which has 1.0 GiB" in answer.out


def test_a_cluster_for_tables_of_100_trillion_parameters(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    sized = ["plan", recipe, "--parameters", "100e12", "--samples", "1e9"]
    answer = satrap(*sized)
    assert answer.code == 0, answer.err
    assert "1e+14 parameters in 2 tables" in answer.out
    assert "most samples/s, limited by" in answer.out
    answer = satrap(*sized, "--json", "--hosts", "gcp/m2-ultramem-416=30")
    assert answer.code == 1
    found = json.loads(answer.out)
    assert (found["fits"], found["hosts"]["gcp/m2-ultramem-416"]) == (False, 30)
    assert found["samples_per_second"] == min(found["limits"].values())
    satrap(*sized, "--hosts", "m2=30").assert_refused("machine 'm2' is unknown")
    satrap(*sized, "--budget", "10").assert_refused("more than the budget of 10.00")
    assert satrap("plan", recipe, "--budget", "10").code == 2


def test_a_mesh_for_some_devices(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    spread = ["--set", "dense.mesh.data=2", "--set", "cluster.exchange=servers"]
    answer = satrap("plan", recipe, "--devices", 2, "--device-memory", "1GiB", *spread)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert "mesh of the recipe: 2 data = 2 workers" in lines
    assert [line.split("  ")[0] for line in lines if line.endswith("PROPOSED")] == ["2 data = 2 workers"]
    answer = satrap("plan", recipe, "--devices", 2, "--device-memory", "4KiB", "--json")
    assert answer.code == 1
    found = json.loads(answer.out)["dense"]
    assert (found["fits"], found["proposed"], found["device_memory"]) == (False, None, 4096)
    assert len(found["tried"]) == 5
    assert found["change"]
    timed = satrap(
        "plan", recipe, "--devices", 2, "--device-memory", "1GiB", "--device-flops", "1e12", "--json"
    )
    assert all(one["seconds"] > 0 for one in json.loads(timed.out)["dense"]["tried"] if "memory" in one)
    slow = satrap("plan", recipe, *spread, "--device-flops", "1e3", "--bandwidth", "10")
    assert "a step takes" in slow.out
    assert "at 0.001 MFLOP/s" in slow.out
    assert "sending at 10 B/s" in slow.out
    assert satrap("plan", recipe, "--parameters", "1e9", "--device-flops", 2).code == 2
    assert satrap("plan", recipe, "--devices", 2).code == 2
    assert satrap("plan", recipe, "--parameters", "1e9", "--devices", 2).code == 2


def test_plan_refuses_what_cannot_be(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    satrap("plan", recipe, "--workers", 2, "--memory", "1KiB", "--rows", "user=1000").assert_refused(
        "the rows need", "too little", "what to do: use"
    )
    satrap("plan", recipe, "--set", "training.stalenes=2").assert_refused("did you mean 'staleness'?")
    for wrong in (
        ["--rows", "user"],
        ["--rows", "user=1.5"],
        ["--rows", "user=inf"],
        ["--memory", "4GB"],
        ["--workers", "0"],
        ["--bandwidth", "0"],
    ):
        assert satrap("plan", recipe, *wrong).code == 2
    satrap("plan", recipe, "--run", tmp_path / "none").assert_refused("", code=1)


def test_a_simulation_with_a_stored_calibration(tmp_path: Path) -> None:
    recipe, file, page = make_recipe(tmp_path), tmp_path / "costs.json", tmp_path / "page.html"
    calibration().write(file)
    asked = ["plan", recipe, "--simulate", "--calibration", file, "--steps", 20]
    servers = ["--set", "cluster.exchange=servers", "--set", "cluster.workers=2"]
    answer = satrap(*asked, *servers, "--what-if", "--spread", "--hours", 5, "--output", page)
    assert answer.code == 0, answer.err
    assert "2 workers x" in answer.out
    assert "5 hours: " in answer.out
    assert page.read_text().startswith("<!doctype html>")
    answer = satrap(*asked, *servers, "--json")
    assert json.loads(answer.out)["outcomes"]["as asked"]["setup"]["workers"] == 2
    satrap(*asked, "--output", "page.txt").assert_refused("ends in .html")
    satrap(*asked[:4], tmp_path / "none").assert_refused("calibration cannot be read")
    assert satrap("plan", recipe, "--spread").code == 2


@pytest.mark.slow
def test_a_calibration_with_real_processes(tmp_path: Path) -> None:
    recipe, file = make_recipe(tmp_path), tmp_path / "costs.json"
    answer = process(
        "plan", recipe, "--calibrate", file, "--rounds", 1, "--steps", 10, "--simulate", seconds=900
    )
    assert answer.code == 0, answer.err
    assert "samples/s" in answer.out
    runs = Calibration.read(file).runs
    assert {(run.exchange, run.measured.workers) for run in runs} >= {
        ("servers", 2),
        ("collective", 2),
        ("local", 1),
    }
    assert all(run.measured.main > 0 for run in runs)


def test_rows_on_a_gpu(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    answer = satrap(
        "plan", recipe, "--device-memory", "1GiB", "--rows", "user=1000000", "--rows", "item=1000"
    )
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if line.startswith("rows on a GPU: "))
    assert line.endswith("they fit; set training.device and embedding.device to cuda")
    answer = satrap("plan", recipe, "--json", "--device-memory", "100MiB", "--rows", "user=1000000")
    found = json.loads(answer.out)["rows_on_device"]
    assert (found["fits"], found["memory"], found["complete"]) == (False, 100 << 20, False)
    assert found["bytes"] // 56 >= 1_000_000
    answer = satrap("plan", recipe, "--device-memory", "100MiB", "--rows", "user=1000000")
    assert "more than 50%, so use embedding.tier, more workers, or rows in RAM" in answer.out
