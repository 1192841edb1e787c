import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from satrap.config import load
from satrap.runtime.cuda import CudaDevice
from satrap.tools.doctor import requirements
from tests.launch.runs import frame, make_recipe

GIB = 1 << 30
GPU = CudaDevice("Some GPU", 16 * GIB, 10 * GIB, True)


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
    [found] = requirements.tables(recipe, limit * GIB)
    assert found.level == level


def test_the_brinks_of_memory_and_what_to_do(tmp_path: Path) -> None:
    """Rows take 56 bytes; 4 GiB are 80 % of 5 GiB."""
    recipe = load(make_recipe(tmp_path), ["embedding.memory=4GiB"])
    limits = (5 * GIB, 5 * GIB - 1, 4 * GIB, 4 * GIB - 1)
    found = [one for limit in limits for one in requirements.tables(recipe, limit)]
    assert [one.level for one in found] == ["ok", "warning", "warning", "error"]
    assert found[0].found == "4.0 GiB of 5.0 GiB for all tables: about 76,695,845 of the widest rows"
    assert [one.fix for one in found] == [
        "",
        "set embedding.memory to at most 4095MiB",
        "set embedding.memory to at most 3276MiB",
        "set embedding.memory to at most 3276MiB, or use embedding.tier",
    ]
    [unlimited] = requirements.tables(load(tmp_path / "clicks.yaml"), 7 * GIB)
    assert "7.0 GiB hold about 107,374,182 of the widest rows" in unlimited.found


def test_budgets_of_all_tables_are_the_memory(tmp_path: Path) -> None:
    given = ["tables.user.memory=5GiB", "tables.item.memory=4GiB"]
    [found] = requirements.tables(load(make_recipe(tmp_path), given), 80 * GIB)
    assert "9.0 GiB of 80 GiB for all tables" in found.found
    [found] = requirements.tables(load(make_recipe(tmp_path), given[:1]), 80 * GIB)
    assert "no limit" in found.found


@pytest.mark.parametrize(("size", "level"), [("6GiB", "ok"), ("7GiB", "warning"), ("9GiB", "error")])
def test_host_memory_behind_a_gpu(tmp_path: Path, size: str, level: str) -> None:
    given = ["training.device=cuda", "embedding.device=cuda", "embedding.memory=100GiB"]
    path = make_recipe(tmp_path)
    assert not [*requirements.tables(load(path, given), 8 * GIB)]
    given += ["embedding.eviction={policy: lru}", f"embedding.tier={{path: memory, size: {size}}}"]
    [found] = requirements.tables(load(path, given), 8 * GIB)
    assert (found.level, f"{size[0]}.0 GiB of 8.0 GiB for rows behind the GPU") == (level, found.found)


def test_replicas_take_as_much_again(tmp_path: Path) -> None:
    given = ["embedding.memory=5GiB", "cluster.exchange=servers", "cluster.workers=2"]
    [found] = requirements.tables(load(make_recipe(tmp_path), given), 8 * GIB)
    assert found.level == "ok"
    given.append("cluster.placements={user: replicated}")
    [found] = requirements.tables(load(make_recipe(tmp_path), given), 8 * GIB)
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
    local = requirements.processes(load(tmp_path / "clicks.yaml"), 0.5)
    assert (local.level, local.found) == ("ok", "the recipe starts 1 on 0.5 cores")
    two = load(tmp_path / "clicks.yaml", ["cluster.exchange=servers", "cluster.workers=1"])
    assert [requirements.processes(two, cores).level for cores in (1, 2)] == ["warning", "ok"]
    more = [
        "cluster.exchange=servers",
        "cluster.workers=2",
        "cluster.shards=3",
        "cluster.loaders=1",
        "cluster.embedding_workers=2",
    ]
    many = load(tmp_path / "clicks.yaml", more)
    assert requirements.processes(many, 64).found == "the recipe starts 8 on 64 cores"
    found = requirements.processes(recipe, 3)
    assert (found.level, "4 on 3 cores" in found.found) == ("warning", True)
    assert found.fix == "use fewer workers or shards"
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
    found = requirements.requirements(load(make_recipe(tmp_path), ["training.device=cuda:1"]))
    assert levels([*found])["device"] == "error"


def test_ports(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        recipe = load(make_recipe(tmp_path), [f"cluster.metrics_port={port}"])
        [found] = requirements.ports(recipe)
        assert (found.level, str(port) in found.found) == ("error", True)
    [found] = requirements.ports(recipe)
    assert found.level == "ok"
    assert list(requirements.ports(load(make_recipe(tmp_path)))) == []


def test_each_process_needs_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "_free", lambda _, port: port not in (7001, 7010))
    processes = ["exchange=servers", "workers=1", "shards=2", "loaders=1", "embedding_workers=1"]
    servers = [f"cluster.{one}" for one in processes]
    for first, given, text in (
        (7000, [], "1 free, from 7000 on"),
        (7001, [], "not free on 127.0.0.1: 7001"),
        (7002, [], "1 free, from 7002 on"),
        (6996, servers, "5 free, from 6996 on"),
        (6997, servers, "not free on 127.0.0.1: 7001"),
    ):
        recipe = load(make_recipe(tmp_path), [f"cluster.metrics_port={first}", *given])
        assert [one.found for one in requirements.ports(recipe)] == [text]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_rows_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["training.device=cuda", "embedding.device=cuda"])
    [finding] = requirements.rows_on_device(recipe, None)
    assert finding.level == "error"
    assert "there is no device cuda: PyTorch sees 0" in finding.found


def test_rows_that_would_fit_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10 << 30, 16 << 30))
    path = make_recipe(tmp_path)
    assert not [*requirements.rows_on_device(load(path, ["embedding.memory=4GiB"]), GPU)]
    given = load(path, ["training.device=cuda", "embedding.memory=4GiB"])
    [finding] = requirements.rows_on_device(given, GPU)
    assert finding.fix == "set embedding.device to cuda: rows there need no copies"
    assert not [*requirements.rows_on_device(given, None)]
    more = load(path, ["training.device=cuda", "embedding.memory=6GiB"])
    assert not [*requirements.rows_on_device(more, GPU)]
    there = ["training.device=cuda", "embedding.device=cuda", "embedding.memory=12GiB"]
    if find_spec("triton") is not None:
        [finding] = requirements.rows_on_device(load(path, there), GPU)
        assert "embedding.memory is 12.0 GiB, but cuda has 10.0 GiB of 16.0 GiB free" in finding.found


def test_devices_and_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(make_recipe(tmp_path), ["training.device=cuda"])
    assert "PyTorch does not see this device" in requirements.device(recipe, None).found
    found = requirements.device(recipe, GPU)
    assert (found.level, found.found) == ("ok", "cuda, float32")
    assert "try dense.precision: bfloat16" in found.fix
    assert not requirements.device(recipe, replace(GPU, bfloat16=False)).fix
    recipe = load(tmp_path / "clicks.yaml", ["training.device=cuda", "dense.precision=bfloat16"])
    assert not requirements.device(recipe, GPU).fix
    for flags, precision, level in (
        ([], "float32", "ok"),
        ([], "bfloat16", "warning"),
        (["amx_bf16"], "bfloat16", "ok"),
        (["avx512_bf16"], "bfloat16", "ok"),
        (["avx512f"], "bfloat16", "warning"),
    ):
        monkeypatch.setattr(requirements, "abilities", lambda flags=flags: flags)
        recipe = load(make_recipe(tmp_path), [f"dense.precision={precision}"])
        found = requirements.device(recipe, None)
        wrong = f"this processor has no instructions for {precision}"
        assert (found.level, found.found) == (level, wrong if level == "warning" else f"cpu, {precision}")


def test_data_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path, rows=frame(100).drop(columns="item"))
    found = list(requirements.data(load(recipe)))
    assert levels(found) == dict.fromkeys(["train rows", "validation rows", "test rows"], "error")
    assert "'item'" in found[0].found
    (tmp_path / "rows.csv").unlink()
    [found, *_] = requirements.data(load(recipe))
    assert (found.level, "rows.csv" in found.found, found.fix != "") == ("error", True, True)
    make_recipe(tmp_path, rows=frame(5))
    found = list(requirements.data(load(recipe)))
    assert levels(found) == {"train rows": "ok", "validation rows": "error", "test rows": "error"}
    none = f"no rows remain after the row split: {tmp_path / 'rows.csv'}"
    assert [one.found for one in found] == ["the first rows can be read", none, none]

    def unreadable(*_: object) -> None:
        raise OSError("a broken disk")

    monkeypatch.setattr(requirements, "open_part", unreadable)
    found = list(requirements.data(load(recipe)))
    assert {(one.level, one.found, one.fix) for one in found} == {
        ("error", "the rows cannot be read: a broken disk", "check path and permissions")
    }
