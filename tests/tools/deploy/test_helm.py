"""Rendered by Helm itself, the chart gives the objects of the plain manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from satrap.config import load
from satrap.tools.deploy import DeployRequest, helm, kubernetes
from tests.launch.runs import RECIPE, make_recipe

NEEDED = ["embedding.memory=1GiB", "checkpoint.every_steps=1000", "checkpoint.url=s3://b/run"]
SERVERS = [*NEEDED, "cluster.exchange=servers", "cluster.shards=3", "checkpoint.durability=journal"]
RAY = [*NEEDED, "cluster.launcher=ray", "cluster.exchange=servers", "cluster.embedding_workers=1"]
REQUEST = DeployRequest(name="run", image="satrap:1", data_claim="data")


def load_all(text: str) -> list[Any]:
    return [one for one in YAML(typ="safe", pure=True).load_all(text) if one]


def chart(folder: Path, *settings: str) -> tuple[Path, list[Any]]:
    """Write a chart; return its folder, and the objects of the plain manifests."""
    recipe = load(make_recipe(folder / "here", own_code(folder / "here")), settings)
    for name, text in helm(recipe, REQUEST).items():
        path = folder / "chart" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "chart", load_all(kubernetes(recipe, REQUEST))


def own_code(folder: Path) -> str:
    """A recipe with a model of the user's own, whose text looks like a template."""
    folder.mkdir()
    (folder / "mine.py").write_text('TEXT = "{{ .Values.image }}"\n\nclass Net: ...\n')
    return RECIPE.replace("{name: dnn, hidden: [8]}", '{class: "mine.py:Net"}')


def rendered(folder: Path, values: dict[str, Any]) -> list[Any]:
    tool = pytest.importorskip("helm_python", reason="pip install helm-python-sdk==0.2.2 to have Helm")
    made = tool.Chart.load(folder).render(values, name="run")
    return [one for text in made.values() for one in load_all(text)]


def in_order(objects: list[Any]) -> list[Any]:
    return sorted(objects, key=lambda one: str(one["kind"]))


@pytest.mark.parametrize("settings", [NEEDED, SERVERS, RAY], ids=["local", "servers", "ray"])
def test_with_its_own_values_it_is_the_manifests(tmp_path: Path, settings: list[str]) -> None:
    folder, plain = chart(tmp_path, *settings)
    assert in_order(rendered(folder, {})) == in_order(plain)


def test_values_change_image_and_sizes(tmp_path: Path) -> None:
    folder, _ = chart(tmp_path, *SERVERS)
    given = {
        "image": "hub/satrap:7",
        "shard": {"memory": "9Gi"},
        "train": {"cpu": "12"},
        "storage": {"journal": "40Gi", "run": "1Ti"},
    }
    found = {one["kind"]: one for one in rendered(folder, given)}
    shards = found["StatefulSet"]["spec"]
    (shard,) = shards["template"]["spec"]["containers"]
    (train,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert shard["image"] == train["image"] == "hub/satrap:7"
    assert shard["resources"]["requests"]["memory"] == shard["resources"]["limits"]["memory"] == "9Gi"
    assert (shard["resources"]["requests"]["cpu"], train["resources"]["requests"]["cpu"]) == ("2", "12")
    (claim,) = shards["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "40Gi"
    assert found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "1Ti"


@pytest.mark.parametrize("settings", [SERVERS, RAY], ids=["servers", "ray"])
def test_helm_finds_no_fault(tmp_path: Path, settings: list[str]) -> None:
    folder, _ = chart(tmp_path, *settings)
    tool = pytest.importorskip("helm_python", reason="pip install helm-python-sdk==0.2.2 to have Helm")
    found = tool.lint(folder)
    assert found["errors"] == []
    assert [one for one in found["messages"] if one["severity"] >= 2] == []


def test_values_are_those_of_the_manifests(tmp_path: Path) -> None:
    folder, _ = chart(tmp_path, *SERVERS)
    values = YAML(typ="safe").load((folder / "values.yaml").read_text())
    # a third of 1 GiB, 256 MiB that a snapshot copies, 1 GiB for the process; the journal: twice as much
    assert values == {
        "image": "satrap:1",
        "shard": {"cpu": "2", "memory": "1622Mi"},
        "train": {"cpu": "4", "memory": "5120Mi"},
        "storage": {"run": "20480Mi", "journal": "3243Mi"},
    }
    assert (folder / "files" / "mine.py").exists()
    assert "{{" not in (folder / "files" / "recipe.yaml").read_text()


@pytest.mark.parametrize("settings", [NEEDED, SERVERS, RAY], ids=["local", "servers", "ray"])
def test_templates_and_values_give_the_manifests(tmp_path: Path, settings: list[str]) -> None:
    """Without Helm: a template of an object only looks values up."""
    folder, plain = chart(tmp_path, *settings)
    values = YAML(typ="safe", pure=True).load((folder / "values.yaml").read_text())

    def looked_up(match: re.Match[str]) -> str:
        found = values
        for key in re.findall(r'"([^"]+)"', match[1]):
            found = found[key]
        return str(found)

    found = {}
    for path in (folder / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        if path.stem != "configmap":
            [found[path.stem]] = load_all(re.sub(r"'?\{\{ index \.Values (.*?) \}\}'?", looked_up, text))
    for one in plain:
        if one["kind"] == "ConfigMap":
            [meta] = load_all((folder / "templates" / "configmap.yaml").read_text().partition("\ndata:")[0])
            assert meta == {key: value for key, value in one.items() if key != "data"}
        else:
            assert yaml_numbers(found.pop(one["kind"].lower())) == yaml_numbers(one)
    assert found == {}
    [about] = load_all((folder / "Chart.yaml").read_text())
    assert (about["apiVersion"], about["name"], about["type"]) == ("v2", "run", "application")


def yaml_numbers(value: Any) -> Any:
    """Quantities such as "2" and 2 alike."""
    if isinstance(value, dict):
        return {key: yaml_numbers(one) for key, one in value.items()}
    return [yaml_numbers(one) for one in value] if isinstance(value, list) else str(value)


def test_the_namespace_is_left_to_helm(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), NEEDED)
    files = helm(recipe, DeployRequest(name="run", image="i", data_claim="d", namespace="ml"))
    assert "namespace" not in "".join(files.values())
