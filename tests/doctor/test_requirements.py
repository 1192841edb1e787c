import socket
from pathlib import Path

import pytest
import torch

from satrap.config import load
from satrap.doctor import requirements
from tests.launch.runs import frame, make_recipe

GIB = 1 << 30


def levels(found: list[requirements.Finding]) -> dict[str, str]:
    return {one.check: one.level for one in found}


def test_a_recipe_that_fits(tmp_path: Path) -> None:
    found = list(requirements.requirements(load(make_recipe(tmp_path))))
    names = ["processes", "tables", "device", "train rows", "validation rows", "test rows"]
    assert levels(found) == dict.fromkeys(names, "ok")


@pytest.mark.parametrize(
    ("memory", "limit", "level"), [("2GiB", 4, "ok"), ("7GiB", 8, "warning"), ("9GiB", 8, "error")]
)
def test_memory_of_the_tables(tmp_path: Path, memory: str, limit: int, level: str) -> None:
    recipe = load(make_recipe(tmp_path), [f"embedding.memory={memory}"])
    assert requirements.tables(recipe, limit * GIB).level == level


def test_budgets_of_all_tables_are_the_memory(tmp_path: Path) -> None:
    given = ["tables.user.memory=5GiB", "tables.item.memory=4GiB"]
    assert "9.0 GiB for all tables" in requirements.tables(load(make_recipe(tmp_path), given), 80 * GIB).found
    assert "no limit" in requirements.tables(load(make_recipe(tmp_path), given[:1]), 80 * GIB).found


def test_replicas_take_as_much_again(tmp_path: Path) -> None:
    given = ["embedding.memory=5GiB", "cluster.exchange=servers", "cluster.workers=2"]
    assert requirements.tables(load(make_recipe(tmp_path), given), 8 * GIB).level == "ok"
    given.append("cluster.placements={user: replicated}")
    found = requirements.tables(load(make_recipe(tmp_path), given), 8 * GIB)
    assert (found.level, "10 GiB" in found.found) == ("error", True)


def test_bytes_of_a_row_are_weights_state_and_index(tmp_path: Path) -> None:
    """Adagrad has a sum for each weight, SGD nothing; the index takes 24 bytes a row."""
    assert requirements.row_bytes(load(make_recipe(tmp_path))) == [4 * 4 + 4 * 4 + 24] * 2
    sgd = ["embedding.optimizer={name: sgd, lr: 0.1}"]
    assert requirements.row_bytes(load(make_recipe(tmp_path), sgd)) == [4 * 4 + 24] * 2


def test_more_processes_than_cores(tmp_path: Path) -> None:
    recipe = load(
        make_recipe(tmp_path), ["cluster.exchange=servers", "cluster.workers=2", "cluster.loaders=1"]
    )
    assert requirements.processes(recipe, 4).level == "ok"
    found = requirements.processes(recipe, 3)
    assert (found.level, "4 on 3 cores" in found.found) == ("warning", True)
    elsewhere = [
        "cluster.exchange=servers",
        "cluster.workers=9",
        "cluster.launcher=ray",
        "cluster.address=auto",
    ]
    found = requirements.processes(load(tmp_path / "clicks.yaml", elsewhere), 4)
    assert (found.level, "10 on a Ray cluster" in found.found) == ("ok", True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    assert requirements.device(load(make_recipe(tmp_path), ["training.device=cuda:1"])).level == "error"


def test_ports(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        recipe = load(make_recipe(tmp_path), [f"cluster.metrics_port={port}"])
        [found] = requirements.ports(recipe)
        assert (found.level, str(port) in found.found) == ("error", True)
    [found] = requirements.ports(recipe)
    assert found.level == "ok"
    assert list(requirements.ports(load(make_recipe(tmp_path)))) == []


def test_data_that_cannot_be_read(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, rows=frame(100).drop(columns="item"))
    found = list(requirements.data(load(recipe)))
    assert levels(found) == dict.fromkeys(["train rows", "validation rows", "test rows"], "error")
    assert "'item'" in found[0].found
    (tmp_path / "rows.csv").unlink()
    [found, *_] = requirements.data(load(recipe))
    assert (found.level, "rows.csv" in found.found, found.fix != "") == ("error", True, True)
    make_recipe(tmp_path, rows=frame(5))
    assert levels(list(requirements.data(load(recipe)))) == {
        "train rows": "ok",
        "validation rows": "error",
        "test rows": "error",
    }
