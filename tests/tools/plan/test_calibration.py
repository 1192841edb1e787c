from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest

from satrap.config import load
from satrap.tools.plan import calibration
from satrap.tools.plan.calibration import Case, calibrate, cases
from satrap.tools.plan.simulate.measured import Measured
from tests.launch.runs import make_recipe


def test_a_case_changes_processes_and_sizes(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    own = load(recipe)
    case = Case("servers", "hybrid", 3, workers=2, shards=2, batch=0.5, dim=2.0)
    found = load(recipe, case.overrides(recipe, ["training.mode=sync", "training.seed=7"]))
    sections = found.sections
    assert (sections.cluster.workers, sections.cluster.shards, sections.training.seed) == (2, 2, 7)
    assert (sections.training.mode, sections.training.staleness) == ("hybrid", 3)
    assert sections.data.batch_size == own.sections.data.batch_size // 2
    dims = {name: 2 * feature.dim for name, feature in own.schema().categorical.items()}
    assert {name: feature.dim for name, feature in found.schema().categorical.items()} == dims


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_a_calibration_is_not_of_the_recipe_itself(cores: int) -> None:
    wanted = cases(cores)
    assert len(set(wanted)) >= len(wanted) - 1  # with one core, both runs in one process are the same
    assert all((case.batch, case.dim) != (1.0, 1.0) for case in wanted if case.exchange != "local")
    assert {case.copies for case in wanted} == {1, cores}


def test_all_cases() -> None:
    """(exchange, mode, ahead, workers, shards, factor of the batch size, of the dims, copies)."""
    found = [
        (one.exchange, one.mode, one.ahead, one.workers, one.shards, one.batch, one.dim, one.copies)
        for one in cases(4)
    ]
    assert found == [
        ("local", "sync", 0, 1, 1, 1.0, 1.0, 1),
        ("local", "sync", 0, 1, 1, 1.0, 1.0, 4),
        ("servers", "hybrid", 2, 1, 1, 0.5, 0.5, 1),
        ("servers", "hybrid", 2, 1, 1, 0.5, 2.0, 1),
        ("servers", "hybrid", 2, 1, 1, 2.0, 0.5, 1),
        ("servers", "hybrid", 2, 1, 1, 2.0, 2.0, 1),
        ("servers", "sync", 0, 1, 1, 0.5, 2.0, 1),
        ("servers", "sync", 0, 1, 1, 2.0, 0.5, 1),
        ("servers", "sync", 0, 2, 2, 0.5, 0.5, 1),
        ("servers", "sync", 0, 2, 2, 2.0, 2.0, 1),
        ("servers", "hybrid", 2, 2, 1, 0.5, 2.0, 1),
        ("collective", "sync", 0, 2, 1, 0.5, 0.5, 1),
        ("collective", "sync", 0, 2, 1, 2.0, 0.5, 1),
        ("collective", "sync", 0, 2, 1, 0.5, 2.0, 1),
    ]
    assert [one.copies for one in cases(0)[:2]] == [1, 1]
    assert {one.delay for one in cases(4)} == {0.0}


@pytest.mark.parametrize("rounds", [1, 3])
def test_an_interrupted_calibration_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Interrupted after each run, it does each once, and finds what an undisturbed one does."""
    done, budget, said = list[Case](), 1000, list[str]()

    def run(recipe: object, others: object, case: Case, steps: int) -> Measured:
        nonlocal budget
        if budget == 0:
            raise KeyboardInterrupt
        budget -= 1
        done.append(case)
        values = {field.name: float(len(done)) for field in fields(Measured)}
        return Measured(**values)  # type: ignore[arg-type]

    monkeypatch.setattr(calibration, "measure", run)
    recipe, kept = make_recipe(tmp_path), tmp_path / "costs.partial.json"
    whole, order = calibrate(recipe, rounds=rounds, kept=kept), done
    assert not kept.exists()
    done = []
    for _ in range(len(order)):
        budget = 1
        with suppress(KeyboardInterrupt):
            found = calibrate(recipe, rounds=rounds, kept=kept, notice=said.append)
    assert (found, done) == (whole, order)
    assert said[0].startswith(f"calibrating: {len(order)} short runs; at least ")
    assert f", {len(order) - 1} already done; at least 0:0" in "\n".join(said)
    done, budget = [], 1
    for others, count in (([], 1), (["training.seed=5"], 2)):  # another recipe begins anew
        with suppress(KeyboardInterrupt):
            calibrate(recipe, others, kept=kept)
        assert len(done) == count
        budget = 1
    kept.write_text("{")
    budget = 1000
    calibrate(recipe, kept=kept)
    assert len(done) == 2 + len(cases(os.cpu_count() or 1))


def test_all_keys_of_a_case(tmp_path: Path) -> None:
    case = Case("servers", batch=0.001, dim=0.01)
    found = dict(one.split("=", 1) for one in case.overrides(make_recipe(tmp_path), ["training.seed=7"]))
    assert found == {
        "training.seed": "7",
        "cluster.exchange": "servers",
        "cluster.placement": "row_wise",
        "cluster.workers": "1",
        "cluster.shards": "1",
        "cluster.embedding_workers": "0",
        "cluster.loaders": "0",
        "training.mode": "sync",
        "training.staleness": "0",
        "training.staleness_warmup": "0",
        "training.lookahead": "0",
        "data.batch_size": "1",
        "data.shuffle": "false",
        "data.balance": "null",
        "data.global_batch": "false",
        "features.user.dim": "1",
        "features.item.dim": "1",
    }
