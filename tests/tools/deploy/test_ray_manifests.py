"""With `cluster.launcher: ray`, manifests are a job for KubeRay, whose pods fit what Ray is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.launchers.resource_fit import asked
from satrap.tools.deploy.sizes import held_bytes
from tests.launch.runs import make_recipe
from tests.tools.deploy import kuberay
from tests.tools.deploy.manifests import NEEDED, RECIPES, Object, objects
from tests.tools.deploy.schemas import problems

SERVERS = [
    *NEEDED,
    "cluster.launcher=ray",
    "cluster.exchange=servers",
    "cluster.shards=3",
    "cluster.workers=2",
]
TOGETHER = [*NEEDED, "cluster.launcher=ray", "cluster.exchange=collective", "cluster.workers=4"]
GPUS = ["training.device=cuda", "cluster.resources.worker.gpu=1"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recipe(tmp_path_factory.mktemp("ray"))


def job_of(recipe: Path, *settings: str, **given: Any) -> Object:
    found: Object = objects(recipe, *settings, **given)["RayJob"]
    return found


def groups(job: Object) -> dict[str, Object]:
    return {one["groupName"]: one for one in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]}


def check(found: dict[str, Object]) -> None:
    assert set(found) == {"ConfigMap", "PersistentVolumeClaim", "PodDisruptionBudget", "RayJob"}
    job = found.pop("RayJob")
    assert kuberay.problems(job) == []
    if kuberay.CRDS:
        assert kuberay.problems_of_release(job, Path(kuberay.CRDS)) == []
    assert {kind: problems(one) for kind, one in found.items()} == {kind: [] for kind in found}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_gives_a_valid_job(recipe: Path) -> None:
    check(objects(recipe, *SERVERS, "cluster.loaders=1", queue="q", one_zone=True, namespace="ml"))


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (TOGETHER, {}),
        ([*TOGETHER, *GPUS], {"worker_nodes": {"pool": "gpu"}, "queue": "q"}),
        ([*SERVERS, "cluster.embedding_workers=2"], {"shard_nodes": {"pool": "memory"}, "shard_cpu": 0.5}),
        ([*SERVERS, "embedding.eviction.policy=lru", "embedding.tier={path: /x, size: 9GiB}"], {}),
        (SERVERS, {"storage_class": "fast", "env_secrets": ("s3",), "service_account": "a"}),
    ],
)
def test_every_option_gives_a_valid_job(recipe: Path, settings: list[str], given: Object) -> None:
    found = objects(recipe, *settings, **given)
    job = found["RayJob"]
    check(found)
    for template in (job["spec"]["rayClusterSpec"]["headGroupSpec"], *groups(job).values()):
        pod = template["template"]["spec"]
        (container,) = pod["containers"]
        mounted = sorted(mount["name"] for mount in container["volumeMounts"])
        assert mounted == sorted(volume["name"] for volume in pod["volumes"])
        assert "command" not in container


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda job: job["spec"].update(backofLimit=3), "'backofLimit' was unexpected"),
        (lambda job: job["spec"].update(backoffLimit="three"), "backoffLimit: 'three' is not of type"),
        (lambda job: job["spec"]["rayClusterSpec"].pop("headGroupSpec"), "'headGroupSpec' is a required"),
        (lambda job: groups(job)["shard"].update(groupName="Shard 1"), "'Shard 1' does not match"),
        (lambda job: groups(job)["shard"].pop("maxReplicas"), "'maxReplicas' is a required"),
        (lambda job: groups(job)["shard"]["resources"].update(CPU=2), "resources.CPU: 2 is not of type"),
        (lambda job: groups(job)["shard"]["rayStartParams"].update({"num-cpus": "2"}), "are given twice"),
        (lambda job: groups(job)["worker"].update(replicas=9), "outside of their bounds"),
        (lambda job: groups(job)["worker"].update(groupName="shard"), "two groups have one name"),
        (lambda job: job["spec"].update(shutdownAfterJobFinishes=False), "can be suspended only"),
        (lambda job: job["spec"]["rayClusterSpec"].update(rayVersion="2.51.0"), "tokens need Ray 2.52"),
        (lambda job: job["metadata"].update(name="x" * 48), "the name is too long"),
        (
            lambda job: groups(job)["shard"]["template"]["spec"]["containers"][0].update(imge="x"),
            "'imge' was unexpected",
        ),
    ],
)
def test_the_check_of_jobs_finds_mistakes(recipe: Path, spoil: Callable[[Object], object], said: str) -> None:
    job = job_of(recipe, *SERVERS, queue="q")
    assert kuberay.problems(job) == []
    spoil(job)
    (problem,) = kuberay.problems(job)
    assert said in problem


@pytest.mark.skipif(kuberay.CRDS is None, reason="KUBERAY_CRDS does not name KubeRay's definitions")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda job: job["spec"].update(backofLimit=3), "'backofLimit' was unexpected"),
        (lambda job: job["spec"].update(backoffLimit="three"), "backoffLimit: 'three' is not of type"),
        (lambda job: groups(job)["shard"]["resources"].update(CPU=2), "resources.CPU: 2 is not of type"),
    ],
)
def test_the_definitions_of_the_release_find_mistakes(
    recipe: Path, spoil: Callable[[Object], object], said: str
) -> None:
    job = job_of(recipe, *SERVERS)
    spoil(job)
    assert kuberay.CRDS is not None
    (problem,) = kuberay.problems_of_release(job, Path(kuberay.CRDS))
    assert said in problem


@pytest.mark.parametrize("settings", [SERVERS, [*SERVERS, "cluster.loaders=2", *GPUS], [*TOGETHER, *GPUS]])
def test_pods_have_what_the_recipe_asks_ray_for(recipe: Path, tmp_path: Path, settings: list[str]) -> None:
    found = objects(recipe, *settings, worker_cpu=6)
    (tmp_path / "pod.yaml").write_text(found["ConfigMap"]["data"]["recipe.yaml"])
    cluster = load(tmp_path / "pod.yaml").sections.cluster
    assert (cluster.launcher, cluster.address, cluster.key) == ("ray", "auto", "/srv/satrap/key/cluster.key")
    free = [
        {name: float(amount) for name, amount in group["resources"].items()}
        for group in groups(found["RayJob"]).values()
        for _ in range(group["replicas"])
    ]
    for amounts in asked(cluster).values():  # a pod for each process, and none left over
        fits = [pod for pod in free if all(pod.get(name, 0) >= n for name, n in amounts.items())]
        assert fits, amounts
        free.remove(fits[0])
    assert free == []


def test_workers_on_gpus_get_theirs(recipe: Path) -> None:
    worker = groups(job_of(recipe, *SERVERS, *GPUS))["worker"]
    pod = worker["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert worker["resources"]["GPU"] == "1"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    many = [*SERVERS[:-1], *GPUS, "cluster.workers=64"]
    assert groups(job_of(recipe, *many))["worker"]["replicas"] == 64


def test_the_queue_decides_when_the_job_begins(recipe: Path) -> None:
    job = job_of(recipe, *SERVERS, queue="q")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert job["spec"]["suspend"] is True
    assert "suspend" not in job_of(recipe, *SERVERS)["spec"]


@pytest.mark.parametrize(("settings", "kind", "count"), [(SERVERS, "shard", 3), (TOGETHER, "worker", 4)])
def test_pods_that_hold_rows_are_not_moved(recipe: Path, settings: list[str], kind: str, count: int) -> None:
    found = objects(recipe, *settings)
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["minAvailable"] == count == groups(found["RayJob"])[kind]["replicas"]
    labels = groups(found["RayJob"])[kind]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == labels


def test_every_pod_sees_the_run_folder_the_recipe_and_the_key(recipe: Path) -> None:
    found = objects(recipe, *SERVERS)
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    cluster = found["RayJob"]["spec"]["rayClusterSpec"]
    for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = one["template"]["spec"]["containers"]
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert places["run"] == "/srv/satrap/run"
        assert places["key"] == "/srv/satrap/key"
        assert places["data"] == "/srv/satrap/data"
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        assert variables["RAY_worker_niceness"] == "0"
    assert found["RayJob"]["spec"]["entrypoint"] == (
        "cd /srv/satrap/run && satrap train /srv/satrap/recipe/recipe.yaml --output run --until-done"
    )


def test_memory_is_that_of_the_process_and_of_ray(recipe: Path) -> None:
    found = groups(job_of(recipe, *SERVERS, shard_memory=5 << 30, worker_memory=3 << 30))
    for kind, size in (("shard", "6144Mi"), ("worker", "4096Mi")):
        resources = found[kind]["template"]["spec"]["containers"][0]["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"] == size


def test_a_worker_that_holds_rows_has_memory_for_them(recipe: Path) -> None:
    found = groups(job_of(recipe, *TOGETHER, worker_memory=3 << 30))
    (container,) = found["worker"]["template"]["spec"]["containers"]
    rows = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) - (4 << 10)
    assert rows == pytest.approx(held_bytes(load(recipe, TOGETHER).sections) / (1 << 20), abs=2)
    assert rows > 256


def test_what_pods_cannot_do_is_one_error(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.exchange is local"):
        objects(recipe, *NEEDED, "cluster.launcher=ray")
    with pytest.raises(ConfigError, match=r"embedding\.memory is not set"):
        objects(recipe, "checkpoint.every_steps=10", *SERVERS[2:])


def test_the_text_is_yaml_that_says_how_to_use_it(recipe: Path) -> None:
    from satrap.tools.deploy import DeployRequest, kubernetes

    text = kubernetes(load(recipe, SERVERS), DeployRequest(name="run", image="i", data_claim="d"))
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "#   kubectl create secret generic run-key --from-file=cluster.key" in head
    assert not any("statefulset" in line for line in head)
    assert json.dumps(list(YAML(typ="safe", pure=True).load_all(text)))
