from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from satrap.config import load
from satrap.errors import CheckpointError, ConfigError, DataError
from satrap.exchange.collective import Placement
from satrap.exchange.kernels import BFLOAT16, FLOAT32
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.network import make_model
from satrap.launch.placement import Facts, placement_of, plan, replicas, training_batches
from satrap.plan import WorkerRates, measure
from satrap.plan.replicas import ReplicaChoice
from satrap.runtime.machine_limits import machine_bytes
from satrap.schema import Schema
from satrap.tools.plan.calibration import calibrate
from satrap.tools.plan.recipe_cluster import plan_size
from tests.launch.runs import RECIPE, UNBOUNDED, bounded, frame, make_recipe


def test_counts_come_from_the_training_rows(tmp_path: Path) -> None:
    found = plan(load(make_recipe(tmp_path), ["data.shuffle=false"]), Facts(workers=2, batches=5))
    assert (found.workload.steps, found.workload.batch_size, found.topology.workers) == (2, 100, 2)
    rows = pd.read_csv(tmp_path / "rows.csv")
    rows = rows[rows.index % 10 < 8].iloc[:400]  # without validation and test rows
    batch = [rows.iloc[i : i + 100] for i in range(0, 400, 100)]
    for table in found.workload.tables:
        assert table.dim == 4
        assert table.rows == rows[table.name].nunique()
        assert table.distinct == sum(b[table.name].nunique() for b in batch) / 4
        assert table.distinct_all == sum(rows.iloc[i : i + 200][table.name].nunique() for i in (0, 200)) / 2


def test_a_model_may_widen_rows_and_the_wire_may_be_wider(tmp_path: Path) -> None:
    text = RECIPE.replace("{name: dnn, hidden: [8]}", "{name: lr}") + "cluster: {wire: {forward: float32}}\n"
    found = plan(load(make_recipe(tmp_path, text))).workload
    assert [table.dim for table in found.tables] == [1, 1]
    assert (found.forward, found.backward) == (FLOAT32, BFLOAT16)


def test_at_least_one_step_is_counted(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path))
    assert plan(recipe, Facts(workers=4, batches=1)).workload.steps == 1
    with pytest.raises(DataError, match="fewer than 17 batches"):
        plan(recipe, Facts(workers=17))


def test_memory_is_what_is_given_or_a_part(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    assert plan(load(recipe), Facts(workers=2)).topology.memory == machine_bytes() // 2
    limited = load(recipe, ["embedding.memory=1MiB"])
    assert plan(limited, Facts(workers=4)).topology.memory == 1 << 18
    assert plan(limited, Facts(workers=4, memory=1 << 19)).topology.memory == 1 << 19
    with pytest.raises(ConfigError, match=r"memory: its part of embedding\.memory; .* with 1,000,000 rows"):
        plan(limited, Facts(workers=4, rows={"item": 10**6}))


def test_what_bounds_the_store_leaves_no_choice(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, bounded(RECIPE, "1KiB")))
    found = plan(recipe, Facts(workers=2))
    assert (found.topology.bounded_by, found.topology.evicts) == ("eviction", True)
    assert set(found.placements.values()) == {"row_wise"}
    admission = RECIPE.replace(UNBOUNDED, UNBOUNDED.replace("0.1}}", "0.1}, admission: {min_count: 2}}"))
    found = plan(load(make_recipe(tmp_path / "b", admission)), Facts(workers=2))
    assert (found.topology.bounded_by, found.topology.evicts) == ("admission", False)


def test_a_table_that_is_bounded_by_itself_leaves_the_others_free(tmp_path: Path) -> None:
    """Of one that evicts, its budget counts; of one that does not, all rows must fit into it."""
    path = make_recipe(tmp_path)
    held = ["cluster.exchange=collective", "cluster.workers=2", "cluster.placements={item: replicated}"]
    own = ["tables.user.memory=1MiB", "tables.user.eviction={policy: lru}", *held]
    found = plan(load(path, own), Facts(workers=2, rows={"user": 10**9}))
    assert found.topology.bounded_by == ""
    assert found.placements == {"user": "row_wise", "item": "replicated"}
    load_of = {table.name: table for table in found.workload.tables}
    assert load_of["user"].rows == (1 << 20) // load_of["user"].row_bytes
    with pytest.raises(
        ConfigError, match=r"1,000,000,000 rows of table 'user' need .*, but tables\.user\.memory is 1\.0 MiB"
    ):
        plan(load(path, [own[0], *held]), Facts(workers=2, rows={"user": 10**9}))
    both = ["tables.item.memory=3MiB", "tables.item.eviction={policy: lru}", *own[:2]]
    topology = plan(load(path, both), Facts(workers=2)).topology
    assert (topology.bounded_by, topology.memory) == ("eviction", 2 << 20)


def test_speeds_are_given_measured_or_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(make_recipe(tmp_path))
    assert plan(recipe, Facts(workers=2)).topology.speeds_from == "assumed"
    facts = Facts(workers=2, bandwidth=1.0, latency=2.0, lookups=3.0, updates=4.0)
    given = plan(recipe, facts).topology
    assert (given.bandwidth, given.latency, given.rates) == (1, 2, {4: WorkerRates(3, 4)})
    assert given.speeds_from == "as given"
    monkeypatch.setattr(measure, "network", lambda workers: (10.0 * workers, 7.0))
    monkeypatch.setattr(measure, "rates", lambda tables: {4: WorkerRates(5, 6)})
    measured = plan(recipe, Facts(workers=2, latency=2.0, measure=True)).topology
    assert (measured.bandwidth, measured.latency, measured.rates) == (20, 2, {4: WorkerRates(5, 6)})
    assert measured.speeds_from == "partly as given, else measured on this machine"


def test_mistakes_are_refused(tmp_path: Path) -> None:
    text = RECIPE.replace("  user:  {dim: 4}\n  item:  {dim: 4}\n", "")
    with pytest.raises(ConfigError, match="no categorical features"):
        plan(load(make_recipe(tmp_path, text, frame(300))))
    with pytest.raises(ConfigError, match="no categorical features"):
        calibrate(make_recipe(tmp_path, text, frame(300)))
    recipe = load(make_recipe(tmp_path))
    with pytest.raises(ConfigError, match="unknown table 'itm'"):
        plan(recipe, Facts(rows={"itm": 3}))
    with pytest.raises(CheckpointError):
        plan(recipe, Facts(run=str(tmp_path)))


def test_workers_place_tables_as_the_recipe_or_the_plan_says(tmp_path: Path) -> None:
    path, said = make_recipe(tmp_path), list[str]()
    held = ["cluster.exchange=collective", "cluster.workers=2", "training.mode=sync"]
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    given = load(path, [*held, "cluster.placement=table_wise", "cluster.placements={user: replicated}"])
    assert placement_of(given, folder, said.append) == Placement("table_wise", {"user": "replicated"})
    assert said == []
    auto = load(path, [*held, "cluster.placement=auto", "cluster.placements={user: replicated}"])
    planned = plan(auto)
    found = placement_of(auto, folder, said.append)
    assert found.tables == planned.placements
    assert planned.placements["user"] == "replicated"
    assert found.owners == planned.cost.owners
    assert said[0].startswith("placement of tables")
    assert "replicated: user" in said[0]
    other = load(path, [*held[:1], *held[2:], "cluster.placement=auto", "cluster.workers=3"])
    folder.placement_file.write_text(json.dumps({**kept(folder), "owners": {"item": 1}}))
    assert placement_of(auto, folder, said.append).owners == {"item": 1}  # a resumed run keeps its plan
    assert len(said) == 1
    placement_of(other, folder, said.append)  # other workers: another plan
    assert (len(said), kept(folder)["workers"]) == (2, 3)


HYBRID = ["cluster.exchange=servers", "cluster.workers=2"]


def test_workers_hold_small_tables_whose_rows_would_be_stale(tmp_path: Path) -> None:
    path, said = make_recipe(tmp_path), list[str]()
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    found = placement_of(load(path, HYBRID), folder, said.append)
    assert found == Placement("row_wise", {"user": "replicated", "item": "replicated"})
    assert said == [
        "placement of tables (for details: satrap plan): every worker holds user, item, which are never "
        "stale; no shard is needed"
    ]
    known = {**kept(folder), "tables": {"user": "row_wise", "item": "replicated"}}
    folder.placement_file.write_text(json.dumps(known))
    again = placement_of(load(path, HYBRID), folder, said.append)
    assert (again.of("user"), len(said)) == ("row_wise", 1)  # a resumed run keeps its placement
    chosen = [*HYBRID, "cluster.placements={user: row_wise}"]
    found = placement_of(load(path, chosen), folder, said.append)
    assert (found.of("user"), found.of("item")) == ("row_wise", "replicated")
    assert said[1].endswith("stale; shards hold user (cluster.placements)")


@pytest.mark.parametrize(
    "more",
    [
        ["cluster.placement=row_wise"],
        ["cluster.workers=1"],
        ["training.mode=sync"],
        ["training.mode=async"],
        ["cluster.exchange=collective"],
        ["cluster.embedding_workers=1"],
        ["dense.mesh={tensor: 2}"],
        ["data.batch_size=2000"],  # a worker would have no batch
        ["embedding.memory=1MiB", "embedding.eviction={policy: lru}"],
    ],
)
def test_otherwise_shards_hold_all_tables(tmp_path: Path, more: list[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    keys = {one.partition("=")[0] for one in more}
    others = [one for one in HYBRID if one.partition("=")[0] not in keys]
    found = placement_of(load(make_recipe(tmp_path), [*others, *more]), folder, lambda _: None)
    assert {found.of("user"), found.of("item")} == {"row_wise"}


def test_frozen_tables_and_tables_with_rows_from_a_file_stay_at_the_shards(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    (tmp_path / "rows.npz").touch()
    recipe = load(path, [*HYBRID, "tables.user.rows=rows.npz", "tables.user.frozen=true"])
    found = replicas(recipe, Facts())
    assert found["user"] == ReplicaChoice(False, "its rows come from a file")
    assert found["item"] == ReplicaChoice(True, "few ids: about 20")
    few = replicas(load(path, [*HYBRID, "data.batch_size=1000"]), Facts())  # all samples are in one step
    assert few["user"] == ReplicaChoice(True, "few ids: about 30")
    assert (
        replicas(recipe, Facts(rows={"item": 10**6}))["item"].why
        == "many ids: about 1,000,000, more than 10,000"
    )


def test_the_ids_of_a_log_grow_after_its_first_events(tmp_path: Path) -> None:
    """Every event has a new user: the log has few so far, but goes on."""
    rows = frame(2000).assign(user=range(2000), at=range(2000))
    (tmp_path / "log").mkdir()
    text = RECIPE.replace("  split: {modulo: 10, validation: [8], test: [9]}\n", "")
    path = make_recipe(tmp_path, text.replace("train: rows.csv", "stream: {folder: log, time: at}"))
    rows.to_parquet(tmp_path / "log" / "0.parquet")
    recipe = load(path, [*HYBRID, "training.epochs=1", "data.batch_size=50"])
    found = replicas(recipe, Facts())
    assert found["user"].why == "many ids: about 1,000,000, more than 10,000"
    assert found["item"].replicated
    ids = Schema((), recipe.schema().categorical)
    assert [batch.size for batch in training_batches(recipe, ids, 2, None)] == [50, 50]


def kept(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.placement_file.read_text())
    return found


def test_the_operations_of_the_network_are_those_of_its_matrices(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path))
    found = plan_size(recipe, 1e9)
    model = make_model(recipe, recipe.schema())
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert found.demand.forward_flop == sum(2 * layer.in_features * layer.out_features for layer in layers)
    assert found.demand.dense == sum(weights.numel() for weights in model.parameters())


BOUNDED_FEATURES = """\
  open:  {dim: 1}
  ranges: {dim: 2, column: price, boundaries: [1, 5, 20]}
  few:   {dim: 2, column: item, vocabulary: [0, 1, 2]}
  mixed: {dim: 2, column: user, buckets: 7}
  hour:  {dim: 2, column: at, time: hour}
  price:"""


def test_tables_whose_values_are_known_keep_their_size(tmp_path: Path) -> None:
    """All values of `open` but one are true or false; missing ones have a row, too, and others than `few`."""
    rows = frame()
    rows["open"] = (rows["item"] % 2 == 0).astype(object)
    rows.loc[3, "open"] = None
    rows["at"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(rows.index * 7, unit="h")
    recipe = load(make_recipe(tmp_path, RECIPE.replace("  price:", BOUNDED_FEATURES), rows))
    found = plan_size(recipe, 1e9)
    sizes = {part.name: part.rows for part in found.demand.parts}
    assert {name: sizes[name] for name in ("open", "ranges", "few", "mixed", "hour")} == {
        "open": 3,
        "ranges": 5,
        "few": 5,
        "mixed": 8,
        "hour": 25,
    }
    assert found.demand.parameters == pytest.approx(1e9, rel=1e-6)  # users and items grow instead
    assert sizes["user"] / sizes["item"] == pytest.approx(30 / 20, rel=1e-3)
    given = plan_size(recipe, 1e9, Facts(rows={"open": 40}))  # the user knows better
    assert {part.name: part.rows for part in given.demand.parts}["open"] > 40
    only = load(
        make_recipe(
            tmp_path / "only",
            RECIPE.replace("  user:  {dim: 4}\n  item:  {dim: 4}", "  item:  {dim: 4, buckets: 9}"),
        )
    )
    with pytest.raises(ConfigError, match=r"the tables cannot grow .* at most 40"):
        plan_size(only, 1e9)


def test_a_network_larger_than_the_machine_is_planned(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["model={name: dnn, hidden: [1000000, 10000000]}"])  # 40 TB
    assert plan(recipe).placements
    with pytest.raises(ConfigError, match=r"shard the network with dense\.mesh"):
        plan_size(recipe, 1e9)
