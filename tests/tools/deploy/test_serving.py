"""Servers in Kubernetes, plain and by KServe: valid by the schemas, with drains that fit the server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from satrap.cli.trained.serve import serve
from satrap.config import load
from satrap.errors import ConfigError
from satrap.serve.http.server import FINISH_SECONDS
from satrap.tools.deploy import DeployRequest, kserve, kubernetes
from satrap.tools.deploy.manifests import USER
from satrap.tools.deploy.sizes import PROCESS, server_bytes
from tests.launch.runs import make_recipe
from tests.tools.deploy import kserve as inference
from tests.tools.deploy.manifests import NEEDED, RECIPES, Object
from tests.tools.deploy.schemas import problems

ASKED = {"name": "run", "image": "satrap:1", "data_claim": "data", "shared": True, "servers": 3}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recipe(tmp_path_factory.mktemp("deploy"))


def servers(recipe: Path, *settings: str, **asked: object) -> dict[str, Object]:
    """The objects of servers by kind, of all that are printed."""
    text = kubernetes(load(recipe, [*NEEDED, *settings]), DeployRequest(**(ASKED | asked)))  # type: ignore[arg-type]
    every = list(YAML(typ="safe", pure=True).load_all(text))
    return {one["kind"]: one for one in every if one["metadata"]["name"] == "run-serve"}


def service(recipe: Path, *settings: str, **asked: object) -> Object:
    text = kserve(load(recipe, [*NEEDED[:1], *settings]), DeployRequest(**(ASKED | asked)))  # type: ignore[arg-type]
    found: Object = YAML(typ="safe", pure=True).load(text)
    return found


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_gives_valid_servers(path: Path) -> None:
    found = servers(path, namespace="ml", one_zone=True, env_secrets=("s3",), service_account="reader")
    assert list(found) == ["Service", "PodDisruptionBudget", "Deployment"]
    assert {kind: problems(one) for kind, one in found.items()} == {kind: [] for kind in found}
    made = service(path, namespace="ml", env_secrets=("s3",), service_account="reader")
    assert inference.problems(made) == []


SHARDS = ("cluster.exchange=servers", "cluster.shards=2", "checkpoint.url=s3://b/run")
RAY = ("cluster.launcher=ray", "cluster.exchange=servers")


@pytest.mark.parametrize("settings", [SHARDS, RAY, ()])
def test_servers_stand_beside_any_run(recipe: Path, settings: tuple[str, ...]) -> None:
    found = servers(recipe, *settings)
    assert len(found) == 3
    without = kubernetes(load(recipe, [*NEEDED, *settings]), DeployRequest(**(ASKED | {"servers": 0})))  # type: ignore[arg-type]
    assert "run-serve" not in without


def test_who_is_told_of_servers_finds_the_pods(recipe: Path) -> None:
    found = servers(recipe)
    pod = found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "server"
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": labels},
    }
    (container,) = pod["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    (port,) = found["Service"]["spec"]["ports"]
    assert (port["port"], ports[port["targetPort"]]) == (8000, 8000)
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    assert "affinity" not in servers(recipe, servers=1)["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("drain", [0, 15, 60])
def test_a_pod_has_time_to_drain_and_to_finish(recipe: Path, drain: int) -> None:
    pods = [
        servers(recipe, drain=drain)["Deployment"]["spec"]["template"]["spec"],
        service(recipe, drain=drain)["spec"]["predictor"],
    ]
    for pod in pods:
        (container,) = pod["containers"]
        command = container["command"]
        assert command[command.index("--drain") + 1] == str(drain)
        assert pod["terminationGracePeriodSeconds"] >= drain + FINISH_SECONDS + 5
        assert "lifecycle" not in container  # the server drains; a hook before SIGTERM would only delay it
        assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 8000}
        assert container["livenessProbe"]["httpGet"]["path"] == "/live"


def test_the_command_is_one_that_satrap_knows(recipe: Path) -> None:
    """Its options are parsed; the folder of the pods is not here."""
    (container,) = servers(recipe)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["satrap", "serve", "/srv/satrap/run/run"]
    done = CliRunner().invoke(serve, container["command"][2:])
    assert isinstance(done.exception, ConfigError)
    assert "it does not exist" in str(done.exception)
    wrong = CliRunner().invoke(serve, [*container["command"][2:], "--drian", "1"])
    assert wrong.exit_code == 2


def test_servers_only_read_and_send_a_key_of_their_own(recipe: Path) -> None:
    pod = servers(recipe, serve_secret="ours")["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert {name for name, one in mounts.items() if not one.get("readOnly")} == {"scratch"}
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert all(value.startswith(mounts["scratch"]["mountPath"]) for value in variables.values())
    secrets = {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    assert secrets == {"ours"}
    command = container["command"]
    assert command[command.index("--key") + 1] == f"{mounts['serve-key']['mountPath']}/serve.key"
    assert pod["securityContext"]["runAsUser"] == USER


def test_memory_has_room_for_what_changes(recipe: Path) -> None:
    sections = load(recipe, ["embedding.memory=8GiB"]).sections
    assert server_bytes(sections) >= PROCESS + 1.1 * (8 << 30)
    limits = servers(recipe, server_memory=5 << 30, server_cpu=0.5)["Deployment"]["spec"]["template"]["spec"]
    assert limits["containers"][0]["resources"] == {
        "requests": {"cpu": "0.5", "memory": "5120Mi"},
        "limits": {"memory": "5120Mi"},
    }


def test_the_head_says_how_to_make_the_key(recipe: Path) -> None:
    text = kubernetes(load(recipe, NEEDED), DeployRequest(**(ASKED | {"namespace": "ml"})))  # type: ignore[arg-type]
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "#   satrap key serve.key" in head
    assert "#   kubectl -n ml create secret generic run-serve --from-file=serve.key" in head
    assert "# scores: http://run-serve:8000/v1/score, after the run has published its first version" in head
    head = kserve(load(recipe, NEEDED), DeployRequest(**ASKED)).splitlines()  # type: ignore[arg-type]
    assert "#   kubectl create secret generic run-serve --from-file=serve.key" in head
    assert "# serves folder run in the volume of claim run-run" in head


def test_servers_that_would_see_no_run_are_refused(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers cannot mount the volume.*\n.*--servers\n.*\n.*--shared"):
        servers(recipe, shared=False)


def test_kserve_needs_the_memory_and_a_server(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedding.memory is not set\n.*\n.*\n.*--server-memory"):
        kserve(load(recipe), DeployRequest(**ASKED))  # type: ignore[arg-type]
    kserve(load(recipe), DeployRequest(**(ASKED | {"server_memory": 1 << 30})))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs at least one server"):
        service(recipe, servers=0)


def test_an_inference_service_speaks_the_second_protocol(recipe: Path) -> None:
    made = service(recipe)
    predictor = made["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)
    (container,) = predictor["containers"]
    assert {"name": "PROTOCOL", "value": "v2"} in container["env"]
    plain = servers(recipe)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == plain["command"]
    assert made["metadata"]["annotations"] == {"serving.kserve.io/deploymentMode": "Standard"}


def _spoilt(path: tuple[str | int, ...], value: object) -> Callable[[Object], None]:
    def spoil(one: Object) -> None:
        place = one["spec"]["predictor"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_spoilt(("minReplica",), 1), "'minReplica' was unexpected"),
        (_spoilt(("minReplicas",), "one"), "'one' is not of type"),
        (_spoilt(("maxReplicas",), 1), "most replicas are fewer"),
        (_spoilt(("containers", 0, "name"), "server"), "another name"),
        (_spoilt(("containers", 0, "imge"), "x"), "'imge' was unexpected"),
        (_spoilt(("deploymentStrategy", "kind"), "x"), "'kind' was unexpected"),
        (lambda one: one.update(apiVersion="serving.kserve.io/v1"), "the API is another"),
    ],
)
def test_the_check_of_inference_services_finds_mistakes(
    recipe: Path, spoil: Callable[[Object], None], said: str
) -> None:
    made = copy.deepcopy(service(recipe))
    spoil(made)
    (problem,) = inference.problems(made)
    assert said in problem


@pytest.mark.skipif(inference.CRDS is None, reason="KSERVE_CRDS does not name KServe's definitions")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_inference_services_are_valid_by_a_release(path: Path) -> None:
    assert inference.CRDS is not None
    made = service(path, namespace="ml", env_secrets=("s3",))
    assert inference.problems_of_release(made, Path(inference.CRDS)) == []
    made["spec"]["predictor"]["minReplica"] = 1
    assert inference.problems_of_release(made, Path(inference.CRDS)) != []
