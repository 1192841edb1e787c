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
    satrap("deploy", "kubernetes", path, *SETTINGS, "--name", "X").assert_refused(
        "'X' is not a valid name", "--name"
    )
    wrong = satrap("deploy", "kubernetes", path, *SETTINGS, "--shard-nodes", "pool")
    assert (wrong.code, "'pool' is not KEY=VALUE" in wrong.err) == (2, True)


def test_dashboard_and_alerts_are_printed() -> None:
    answer = satrap("deploy", "dashboard")
    assert (answer.code, json.loads(answer.out)["uid"]) == (0, "satrap")
    answer = satrap("deploy", "alerts")
    assert answer.code == 0
    assert YAML(typ="safe", pure=True).load(answer.out)["groups"][0]["name"] == "satrap"


def test_a_chart_is_written_to_a_new_folder(tmp_path: Path) -> None:
    path, folder = make_recipe(tmp_path), tmp_path / "chart"
    answer = satrap("deploy", "helm", path, *SETTINGS, "--output", folder)
    assert (answer.code, answer.out) == (0, f"{folder}: helm install clicks {folder}\n")
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    objects = {f"templates/{kind}.yaml" for kind in ("configmap", "job", "persistentvolumeclaim")}
    assert files == {"Chart.yaml", "values.yaml", "files/recipe.yaml"} | objects
    satrap("deploy", "helm", path, *SETTINGS, "--output", folder).assert_refused("not empty", "--output")


def test_the_version_of_ray_is_that_of_the_image(tmp_path: Path) -> None:
    ray = ("cluster.launcher=ray", "cluster.exchange=servers")
    options = [word for setting in ray for word in ("--set", setting)]
    answer = satrap(
        "deploy", "kubernetes", make_recipe(tmp_path), *SETTINGS, *options, "--ray-version", "2.61.0"
    )
    assert "rayVersion: 2.61.0\n" in answer.out


def test_servers_and_their_options(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    options = [
        "--servers",
        3,
        "--server-memory",
        "2GiB",
        "--server-cpu",
        1,
        "--drain",
        0,
        "--serve-secret",
        "k",
    ]
    answer = satrap("deploy", "kubernetes", path, *SETTINGS, "--shared", *options)
    assert answer.code == 0, answer.err
    found = {one["kind"]: one for one in YAML(typ="safe", pure=True).load_all(answer.out)}
    assert found["Deployment"]["spec"]["replicas"] == 3
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["memory"] == "2048Mi"
    assert container["command"][-2:] == ["--drain", "0"]
    answer = satrap("deploy", "kserve", path, *SETTINGS[:2], *options, "--name", "mine")
    assert answer.code == 0, answer.err
    made = YAML(typ="safe", pure=True).load(answer.out)
    predictor = made["spec"]["predictor"]
    assert (made["kind"], made["metadata"]["name"]) == ("InferenceService", "mine-serve")
    assert predictor["containers"][0]["resources"] == container["resources"]
    assert predictor["terminationGracePeriodSeconds"] == pod["terminationGracePeriodSeconds"]
    satrap("deploy", "kubernetes", path, *SETTINGS, *options).assert_refused("--shared", "--servers")
    satrap("deploy", "kserve", path).assert_refused("embedding.memory is not set", "--server-memory")


def test_an_application_of_ray_serve_is_printed(tmp_path: Path) -> None:
    make_recipe(tmp_path).rename(tmp_path / "recipe.yaml")
    options = ["--replicas", 4, "--cpu", 1, "--memory", "1GiB", "--listen", "127.0.0.1:81", "--name", "books"]
    answer = satrap("deploy", "ray-serve", tmp_path, *options, "--follow")
    assert answer.code == 0, answer.err
    made = YAML(typ="safe", pure=True).load(answer.out)
    assert made["http_options"] == {"host": "127.0.0.1", "port": 81}
    [application] = made["applications"]
    assert application["args"] == {"run": str(tmp_path), "name": "books", "follow": True}
    [deployment] = application["deployments"]
    assert (deployment["num_replicas"], deployment["ray_actor_options"]["memory"]) == (4, 1 << 30)
    satrap("deploy", "ray-serve", tmp_path / "no").assert_refused("not a run folder")
