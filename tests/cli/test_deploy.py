from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.cli.command import satrap
from tests.launch.runs import make_recipe

SETTINGS = ("--set", "embedding.memory=1GiB", "--set", "checkpoint.every_steps=9", "--data-claim", "data")


def test_options_reach_the_manifests(tmp_path: Path) -> None:
    options = [
        "--set",
        "cluster.exchange=servers",
        "--shared",
        "--name",
        "mine",
        "--image",
        "hub/satrap:7",
        "--one-zone",
    ]
    options += ["--shard-nodes", "pool=memory", "--shard-memory", "3GiB", "--queue", "q", "--storage", "1GiB"]
    answer = satrap("deploy", "kubernetes", make_recipe(tmp_path), *SETTINGS, *options)
    assert answer.code == 0, answer.err
    found = {one["kind"]: one for one in YAML(typ="safe", pure=True).load_all(answer.out)}
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    assert found["StatefulSet"]["metadata"]["name"] == "mine-shard"
    assert pod["nodeSelector"] == {"pool": "memory"}
    assert pod["containers"][0]["image"] == "hub/satrap:7"
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "3072Mi"
    assert found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "1024Mi"


@pytest.mark.parametrize(("device", "image"), [("cpu", "satrap:0.1.0"), ("cuda", "satrap:0.1.0-cuda")])
def test_the_image_goes_with_the_device(tmp_path: Path, device: str, image: str) -> None:
    answer = satrap(
        "deploy", "kubernetes", make_recipe(tmp_path), *SETTINGS, "--set", f"training.device={device}"
    )
    assert f"image: {image}\n" in answer.out


def test_mistakes_are_one_error(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    satrap("deploy", "kubernetes", path, *SETTINGS[:4]).assert_refused("--data-claim")
    satrap("deploy", "kubernetes", path, *SETTINGS, "--name", "X").assert_refused("name 'X'", "--name")
    wrong = satrap("deploy", "kubernetes", path, *SETTINGS, "--shard-nodes", "pool")
    assert (wrong.code, "'pool' is not KEY=VALUE" in wrong.err) == (2, True)


def test_dashboard_and_alerts_are_printed() -> None:
    answer = satrap("deploy", "dashboard")
    assert (answer.code, json.loads(answer.out)["uid"]) == (0, "satrap")
    answer = satrap("deploy", "alerts")
    assert answer.code == 0
    assert YAML(typ="safe", pure=True).load(answer.out)["groups"][0]["name"] == "satrap"
