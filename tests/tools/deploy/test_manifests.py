"""Manifests are valid for Kubernetes, whatever the recipe, and say what the recipe needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from satrap.tools.deploy.manifests import quantity
from tests.launch.runs import make_recipe
from tests.tools.deploy.manifests import NEEDED, RECIPES, Object, objects
from tests.tools.deploy.schemas import problems

SERVERS = [*NEEDED, "checkpoint.url=s3://bucket/run", "cluster.exchange=servers", "cluster.shards=3"]


def pod(one: Object) -> Object:
    found: Object = one["spec"]["template"]["spec"]
    return found


def test_all_recipes_are_found() -> None:
    assert len(RECIPES) == 14


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_gives_valid_manifests(recipe: Path) -> None:
    journal = ["checkpoint.durability=journal", "cluster.loaders=1"]
    found = objects(recipe, *SERVERS, *journal, queue="q", one_zone=True, namespace="ml")
    assert {kind: problems(one) for kind, one in found.items()} == {kind: [] for kind in found}
    assert set(found) == {
        "ConfigMap",
        "PersistentVolumeClaim",
        "Service",
        "StatefulSet",
        "PodDisruptionBudget",
        "Job",
    }
    assert {one["metadata"]["namespace"] for one in found.values()} == {"ml"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recipe(tmp_path_factory.mktemp("deploy"))


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (NEEDED, {}),
        ([*NEEDED, "cluster.exchange=collective", "cluster.workers=4"], {}),
        ([*SERVERS, "training.device=cuda", "cluster.workers=8"], {"worker_nodes": {"pool": "gpu"}}),
        ([*SERVERS, "embedding.eviction.policy=lru", "embedding.tier={path: /x, size: 9GiB}"], {}),
        ([*NEEDED, "embedding.eviction.policy=lru", "embedding.tier={path: /x, size: 9GiB}"], {}),
        (SERVERS, {"shared": True, "storage_class": "fast", "env_secrets": ("s3",), "service_account": "a"}),
    ],
)
def test_every_option_gives_valid_manifests(recipe: Path, settings: list[str], asked: Object) -> None:
    found = objects(recipe, *settings, **asked)
    assert {kind: problems(one) for kind, one in found.items()} == {kind: [] for kind in found}
    for one in found.values():
        if "template" in one.get("spec", {}):
            (container,) = pod(one)["containers"]
            claimed = [c["metadata"]["name"] for c in one["spec"].get("volumeClaimTemplates", [])]
            volumes = [volume["name"] for volume in pod(one)["volumes"]]
            assert sorted(volumes + claimed) == sorted(m["name"] for m in container["volumeMounts"])


@pytest.mark.parametrize(
    ("kind", "spoil", "said"),
    [
        ("Job", lambda one: one["spec"].update(backofLimit=3), "'backofLimit' was unexpected"),
        ("Job", lambda one: one["spec"].update(backoffLimit="three"), "spec.backoffLimit: 'three' is not"),
        ("StatefulSet", lambda one: one["spec"].pop("selector"), "'selector' is a required property"),
        ("StatefulSet", lambda one: pod(one)["containers"][0].update(imge="x"), "'imge' was unexpected"),
        ("StatefulSet", lambda one: pod(one).update(restartPolicy=["Always"]), "is not of type"),
        ("Service", lambda one: one["spec"]["ports"][0].update(port="rows"), "'rows' is not of type"),
        ("ConfigMap", lambda one: one["data"].update(number=1), "1 is not of type"),
        ("PodDisruptionBudget", lambda one: one["spec"].update(max=1), "'max' was unexpected"),
    ],
)
def test_the_check_of_manifests_finds_mistakes(
    recipe: Path, kind: str, spoil: Callable[[Object], object], said: str
) -> None:
    one = objects(recipe, *SERVERS)[kind]
    spoil(one)
    (problem,) = problems(one)
    assert said in problem


def test_labels_and_selectors_meet(recipe: Path) -> None:
    found = objects(recipe, *SERVERS, queue="q")
    shards = found["StatefulSet"]
    labels = shards["spec"]["template"]["metadata"]["labels"]
    assert shards["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Job"]["spec"]["template"]["metadata"]["labels"] != labels
    assert shards["spec"]["serviceName"] == found["Service"]["metadata"]["name"]
    queued = [k for k, one in found.items() if "kueue.x-k8s.io/queue-name" in one["metadata"]["labels"]]
    assert sorted(queued) == ["Job", "StatefulSet"]


def test_the_key_is_named_and_not_held(recipe: Path) -> None:
    found = objects(recipe, *SERVERS, key_secret="ours")
    for kind in ("Job", "StatefulSet"):
        volumes = {volume["name"]: volume for volume in pod(found[kind])["volumes"]}
        assert volumes["key"]["secret"] == {"secretName": "ours", "defaultMode": 0o440}
    assert "Secret" not in found
    assert "secretName" not in str(objects(recipe, *NEEDED))


def test_a_budget_lets_shards_move_only_if_their_rows_survive(recipe: Path) -> None:
    assert objects(recipe, *SERVERS)["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 0
    found = objects(recipe, *SERVERS, "checkpoint.durability=journal")
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    (claim,) = found["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "journal"
    assert "--journal" in pod(found["StatefulSet"])["containers"][0]["command"]


def test_memory_is_asked_for_and_limited_alike(recipe: Path) -> None:
    found = objects(recipe, *SERVERS, shard_memory=5 << 30, worker_cpu=2, shard_cpu=0.5)
    shard, train = (pod(found[kind])["containers"][0]["resources"] for kind in ("StatefulSet", "Job"))
    assert shard == {"requests": {"cpu": "0.5", "memory": "5120Mi"}, "limits": {"memory": "5120Mi"}}
    assert train["requests"]["memory"] == train["limits"]["memory"]
    assert train["requests"]["cpu"] == "2"


def test_machine_code_is_kept_where_a_new_pod_finds_it(recipe: Path) -> None:
    def folder(one: Object) -> str:
        (container,) = pod(one)["containers"]
        found = {variable["name"]: variable["value"] for variable in container["env"]}["NUMBA_CACHE_DIR"]
        (volume,) = [m["name"] for m in container["volumeMounts"] if found.startswith(m["mountPath"] + "/")]
        return str(volume)

    plain, journal = objects(recipe, *SERVERS), objects(recipe, *SERVERS, "checkpoint.durability=journal")
    assert (folder(plain["StatefulSet"]), folder(plain["Job"])) == ("scratch", "run")
    assert folder(journal["StatefulSet"]) == "journal"
    assert folder(objects(recipe, *SERVERS, shared=True)["StatefulSet"]) == "run"


def test_workers_on_gpus_get_one_each(recipe: Path) -> None:
    found = objects(recipe, *SERVERS, "training.device=cuda", "cluster.workers=8")
    (container,) = pod(found["Job"])["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod(found["Job"])[
        "tolerations"
    ]


def test_pods_are_in_one_zone_and_on_their_nodes(recipe: Path) -> None:
    found = objects(recipe, *SERVERS, one_zone=True, shard_nodes={"pool": "memory"})
    for kind in ("StatefulSet", "Job"):
        (near,) = pod(found[kind])["affinity"]["podAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert near["topologyKey"] == "topology.kubernetes.io/zone"
        labels = found[kind]["spec"]["template"]["metadata"]["labels"]
        assert near["labelSelector"]["matchLabels"].items() <= labels.items()
    assert pod(found["StatefulSet"])["nodeSelector"] == {"pool": "memory"}
    tolerated = {"key": "pool", "operator": "Equal", "value": "memory", "effect": "NoSchedule"}
    assert pod(found["StatefulSet"])["tolerations"] == [tolerated]
    assert "nodeSelector" not in pod(found["Job"])


def test_a_run_that_is_stopped_has_time_to_save(recipe: Path) -> None:
    found = objects(recipe, *NEEDED, "cluster.grace=200")
    assert pod(found["Job"])["terminationGracePeriodSeconds"] == 230
    assert set(found) == {"ConfigMap", "PersistentVolumeClaim", "Job"}


TIER = ["embedding.eviction.policy=lru", "embedding.tier={path: /x, size: 9GiB}"]
HELPERS = ["cluster.workers=2", "cluster.loaders=2", "cluster.embedding_workers=1", "cluster.restarts=5"]


@pytest.mark.parametrize(
    ("name", "settings", "asked"),
    [
        (
            "servers",
            [*SERVERS, *TIER, *HELPERS, "checkpoint.durability=journal", "cluster.grace=45.5"],
            {
                "worker_cpu": 2, "shard_cpu": 0.5, "storage": 3 << 30, "storage_class": "fast",
                "env_secrets": ("s3",), "service_account": "trainer", "namespace": "ml", "queue": "q",
                "one_zone": True, "shard_nodes": {"pool": "memory"},
            },
        ),
        (
            "shared",
            [*SERVERS[:-1], "cluster.shards=1"],
            {"shared": True, "shard_memory": 5 << 30, "worker_memory": 2 << 30, "key_secret": "ours"},
        ),
        ("gpu", [*NEEDED, *TIER, "training.device=cuda", "cluster.restarts=0"], {"data_claim": "d"}),
        (
            "ray",
            [
                *NEEDED, *TIER, *SERVERS[-2:], "cluster.workers=2", "cluster.loaders=2", "cluster.restarts=0",
                "cluster.launcher=ray", "training.device=cuda", "cluster.resources.worker.gpu=1",
                "cluster.grace=45.5",
            ],
            {"shard_cpu": 0.5, "queue": "q"},
        ),
    ],
)  # fmt: skip
def test_whole_manifests(recipe: Path, name: str, settings: list[str], asked: Object) -> None:
    """Everything but the recipe, as it was read through once, line by line."""
    text = (Path(__file__).parent / "expected" / f"{name}.yaml").read_text(encoding="utf-8")
    expected = {one["kind"]: one for one in YAML(typ="safe", pure=True).load_all(text)}
    found = objects(recipe, *settings, **asked)
    assert list(found) == ["ConfigMap", *expected]
    del found["ConfigMap"]
    assert found == expected


def test_quantities_are_rounded_up() -> None:
    assert [quantity(1), quantity(1 << 20), quantity((1 << 30) + 1)] == ["1Mi", "1Mi", "1025Mi"]
