from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from satrap.config import load
from satrap.tools.deploy import DeployRequest, kubernetes
from tests.launch.runs import make_recipe

NEEDED = ["embedding.memory=1GiB", "checkpoint.every_steps=1000"]


def test_the_head_says_how_to_use_it(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), [*NEEDED, "cluster.exchange=servers", "checkpoint.url=s3://b/run"])
    text = kubernetes(recipe, DeployRequest(name="run", image="i", data_claim="d", namespace="ml"))
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "#   kubectl -n ml create secret generic run-key --from-file=cluster.key" in head
    assert "# start:  kubectl -n ml apply -f FILE" in head
    alone = kubernetes(
        load(make_recipe(tmp_path), NEEDED), DeployRequest(name="run", image="i", data_claim="d")
    )
    assert "secret" not in alone


def test_texts_of_several_lines_stay_readable(tmp_path: Path) -> None:
    text = kubernetes(
        load(make_recipe(tmp_path), NEEDED), DeployRequest(name="run", image="i", data_claim="d")
    )
    assert "  recipe.yaml: |\n    data:\n      train:\n      - /srv/satrap/data/rows.csv\n" in text
    assert "&id" not in text
    first = next(YAML(typ="safe", pure=True).load_all(text))
    (tmp_path / "recipe.yaml").write_text(first["data"]["recipe.yaml"])
    assert load(tmp_path / "recipe.yaml").sections.embedding.memory == 1 << 30


KEY = [
    "# once, before: the key of the cluster, which is not part of these manifests",
    "#   satrap key cluster.key",
    "#   kubectl create secret generic run-key --from-file=cluster.key",
]
USE = [
    "# start:  kubectl apply -f FILE",
    "# watch:  kubectl logs -f job/run-train",
    "# result: folder run in the volume of claim run-run",
]
SHARDS = ["# after the job, the shards keep running; delete them: kubectl delete statefulset run-shard"]
RAY = ["cluster.launcher=ray", "cluster.exchange=servers"]


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (["cluster.exchange=servers", "checkpoint.url=s3://b/run"], [*KEY, *USE, *SHARDS]),
        (RAY, [*KEY, *USE]),
        ([], USE),
    ],
)
def test_the_whole_head(tmp_path: Path, settings: list[str], lines: list[str]) -> None:
    recipe = load(make_recipe(tmp_path), [*NEEDED, *settings])
    text = kubernetes(recipe, DeployRequest(name="run", image="i", data_claim="d"))
    first = f"# Made by satrap {version('satrap')}: satrap deploy kubernetes"
    assert text.partition("---\n")[0].splitlines() == [first, "#", *lines]
