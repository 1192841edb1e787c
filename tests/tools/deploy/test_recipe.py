"""A recipe as pods read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools.deploy import DeployRequest
from satrap.tools.deploy.recipe import PodRecipe, for_pods
from tests.launch.runs import RECIPE, make_recipe

NEEDED = ["embedding.memory=1GiB", "checkpoint.every_steps=1000"]
SERVERS = [*NEEDED, "cluster.exchange=servers", "cluster.shards=2"]


def made(recipe: Path, *settings: str, **asked: Any) -> PodRecipe:
    given = {"name": "run", "image": "satrap:1", "data_claim": "data", "shared": True} | asked
    return for_pods(load(recipe, settings), DeployRequest(**given))


def test_paths_and_addresses_are_those_of_pods(tmp_path: Path) -> None:
    join = "  join: [{source: items/names.csv, on: item}]\n"
    path = make_recipe(tmp_path, RECIPE.replace("  batch_size", f"{join}  batch_size", 1))
    test = ["data.split={modulo: 10, validation: [8]}"]
    settings = [*SERVERS, *test, "embedding.eviction.policy=lru", "embedding.tier={path: here, size: 1GiB}"]
    text = path.read_text() + "about: {md5: {rows.csv: abc}}\n"
    path.write_text(text.replace("train: rows.csv", "train: [rows.csv, s3://b/x.csv]\n  test: s3://b/*.csv"))
    found = made(path, *settings)
    sections = load_again(tmp_path, found)
    assert sections == found.recipe.sections
    assert sections.data.train == ["/srv/satrap/data/rows.csv", "s3://b/x.csv"]
    assert sections.data.test == ["s3://b/*.csv"]
    assert sections.data.join[0].source == "/srv/satrap/data/items/names.csv"
    assert sections.about.md5 == {}
    assert sections.embedding.tier is not None
    assert sections.embedding.tier.path == "/srv/satrap/tier"
    assert sections.cluster.addresses == ["run-shard-0.run-shards:5000", "run-shard-1.run-shards:5000"]
    assert sections.cluster.key == "/srv/satrap/key/cluster.key"
    assert (sections.cluster.deadline, sections.training.threads) == (300.0, 4)
    assert (sections.cluster.metrics_host, sections.cluster.metrics_port) == ("0.0.0.0", 9100)


def load_again(folder: Path, found: PodRecipe) -> Any:
    (folder / "recipe.yaml").write_text(found.files["recipe.yaml"])
    return load(folder / "recipe.yaml").sections


def test_what_the_recipe_says_stays(tmp_path: Path) -> None:
    given = ["cluster.deadline=30", "training.threads=7", "checkpoint.url=s3://b/run"]
    sections = made(make_recipe(tmp_path), *SERVERS, *given).recipe.sections
    assert (sections.cluster.deadline, sections.training.threads) == (30.0, 7)
    assert sections.checkpoint.url == "s3://b/run"


def test_a_journal_is_the_shards_affair(tmp_path: Path) -> None:
    found = made(make_recipe(tmp_path), *SERVERS, "checkpoint.durability=journal")
    assert found.journal
    assert found.recipe.sections.checkpoint.durability == "snapshot"
    assert not made(make_recipe(tmp_path), *SERVERS).journal


def test_own_code_lies_beside_the_recipe(tmp_path: Path) -> None:
    text = RECIPE.replace("{name: dnn, hidden: [8]}", '{class: "nets/mine.py:Net"}')
    path = make_recipe(tmp_path, text)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/mine.py").write_text("import helper\n\nclass Net: ...\n")
    (tmp_path / "nets/helper.py").write_text("x = 1\n")
    found = made(path, *NEEDED)
    assert set(found.files) == {"recipe.yaml", "mine.py", "helper.py"}
    assert found.files["helper.py"] == "x = 1\n"
    assert found.recipe.sections.model.own == "mine.py:Net"
    (tmp_path / "nets/helper.py").write_text("# " + "x" * 1_000_000)
    with pytest.raises(ConfigError, match="more than 900,000 bytes"):
        made(path, *NEEDED)
    (tmp_path / "nets/helper.py").unlink()
    (tmp_path / "nets/helper").mkdir()
    (tmp_path / "nets/helper/__init__.py").write_text("")
    with pytest.raises(ConfigError, match="cannot be in the same folder as the recipe"):
        made(path, *NEEDED)


def test_all_that_is_missing_is_one_error(tmp_path: Path) -> None:
    """Following it, each part once, gives manifests."""
    path = make_recipe(tmp_path)
    servers = ["cluster.exchange=servers", "cluster.shards=2"]
    with pytest.raises(ConfigError) as caught:
        made(path, *servers, data_claim=None, shared=False)
    said = str(caught.value)
    for part in ("4 reasons", "embedding.memory is not set", "checkpoint.every_steps is not set"):
        assert part in said
    for part in ("checkpoint.url is not set", "data.train is a path of this machine", "(4) use a URL"):
        assert part in said
    assert len(said.splitlines()) == 4
    done = [*servers, *NEEDED, "checkpoint.url=s3://b/run", "data.train=s3://b/rows.csv"]
    assert len(made(path, *done, data_claim=None, shared=False).recipe.sections.cluster.addresses) == 2


@pytest.mark.parametrize(
    ("settings", "claim", "said"),
    [
        (NEEDED, None, "data.train is a path of this machine: rows.csv"),
        ([*NEEDED, "data.test=[/x/y.csv]", "data.split={modulo: 9}"], "data", "data.test is a path of this"),
        (NEEDED[1:], "data", "embedding.memory is not set"),
        (NEEDED[:1], "data", "checkpoint.every_steps is not set"),
        ([*NEEDED, "checkpoint.url=runs/x"], "data", "checkpoint.url is a folder of this machine: runs/x"),
        ([*NEEDED, "training.device=cuda:1"], "data", "training.device is cuda:1"),
        (
            [*NEEDED, "embedding.eviction.policy=lru", "embedding.tier={path: memory, size: 1GiB}"],
            "data",
            "embedding.tier is in host memory",
        ),
        (
            [*SERVERS, "training.device=cuda", "cluster.workers=64"],
            "data",
            "64 workers on cuda need 64 GPUs in one pod",
        ),
        (
            [*NEEDED, "cluster.exchange=servers", 'cluster.addresses=["h:1"]'],
            "data",
            "cluster.addresses names running shards",
        ),
    ],
)
def test_what_pods_cannot_do_is_one_error(
    tmp_path: Path, settings: list[str], claim: str | None, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        made(make_recipe(tmp_path), *settings, data_claim=claim)
    assert said in error.value.what
    assert error.value.where
    assert error.value.fix
    assert len(str(error.value).splitlines()) == 4


def test_shards_must_see_where_snapshots_are(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    with pytest.raises(ConfigError, match=r"checkpoint\.url is not set") as error:
        made(path, *SERVERS, shared=False)
    assert "--shared" in error.value.fix
    made(path, *SERVERS, "checkpoint.url=s3://b/run", shared=False)
    made(path, *NEEDED, shared=False)


def test_paths_leave_no_volume(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    path.write_text(path.read_text().replace("rows.csv", "../rows.csv"))
    with pytest.raises(ConfigError, match="by paths relative to its root"):
        made(path, *NEEDED)


def test_a_pod_has_as_many_workers_as_a_host_has_gpus(tmp_path: Path) -> None:
    path, settings = make_recipe(tmp_path), [*SERVERS, "training.device=cuda"]
    assert made(path, *settings, "cluster.workers=16").recipe.sections.cluster.workers == 16
    with pytest.raises(ConfigError, match="17 workers on cuda"):
        made(path, *settings, "cluster.workers=17")
    ray = [*settings, "cluster.launcher=ray", "cluster.resources.worker.gpu=1"]
    assert made(path, *ray, "cluster.workers=17").recipe.sections.cluster.workers == 17


def test_the_most_bytes_of_recipe_and_code(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, RECIPE.replace("{name: dnn, hidden: [8]}", '{class: "mine.py:Net"}'))
    (tmp_path / "mine.py").write_text("class Net: ...\n")
    code = "class Net: ...\n#"
    room = 900_000 - len(made(path, *NEEDED).files["recipe.yaml"]) - len(code)
    (tmp_path / "mine.py").write_text(code + "x" * room)
    assert sum(map(len, made(path, *NEEDED).files.values())) == 900_000
    (tmp_path / "mine.py").write_text(code + "x" * (room + 1))
    with pytest.raises(ConfigError, match="more than 900,000 bytes"):
        made(path, *NEEDED)
