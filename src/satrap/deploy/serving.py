"""The objects of Kubernetes that answer requests with what a run has published: plain ones, and KServe's."""

from __future__ import annotations

from importlib.metadata import version

from satrap.config import Recipe
from satrap.config.tables import memory_of
from satrap.deploy import recipe as pods
from satrap.deploy.manifests import SERVER, Manifests, Object, probe
from satrap.deploy.request import Request
from satrap.deploy.sizes import server_bytes
from satrap.deploy.text import to_yaml
from satrap.errors import ConfigError

FINISH_SECONDS = 30
"""Seconds in which `satrap serve` finishes what it has begun, once it accepts no more connections."""
SPARE_SECONDS = 10
"""Seconds between its end and its being killed."""
LOAD_SECONDS = 1800
"""Seconds for reading the rows before a server counts as failed."""
ONE_MORE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
"""How pods are replaced: a new one is ready before an old one ends."""
CONTAINER = "kserve-container"
"""The name by which KServe knows the container that answers."""
STANDARD = {"serving.kserve.io/deploymentMode": "Standard"}
"""Plain Deployments: Knative takes one port, and no claims unless told to."""


class Servers(Manifests):
    """Makes the objects that serve a run: every pod has all rows, and follows what the run publishes.

    A pod that is to end answers on for `drain` seconds and is not ready meanwhile, so no request is sent to
    one that has gone. Nothing sleeps before SIGTERM: `satrap serve --drain` does it.
    """

    def objects(self) -> list[Object]:
        """Return all objects, in the order in which they are needed."""
        return [self.service(), self.disruption_budget(), self.deployment()]

    def service(self) -> Object:
        """The address of the servers that are ready."""
        ports = [{"name": "http", "port": pods.SERVE_PORT, "targetPort": "http"}]
        return self._object("v1", "Service", "serve", SERVER) | {
            "spec": {"selector": self._labels(SERVER), "ports": ports}
        }

    def disruption_budget(self) -> Object:
        """One server may be moved at a time."""
        return self._object("policy/v1", "PodDisruptionBudget", "serve", SERVER) | {
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": self._labels(SERVER)}}
        }

    def deployment(self) -> Object:
        """The servers; a new image begins beside the old one."""
        spec = {
            "replicas": self.request.servers,
            "strategy": dict(ONE_MORE),
            "progressDeadlineSeconds": LOAD_SECONDS,
            "selector": {"matchLabels": self._labels(SERVER)},
            "template": self._pod(SERVER, self.server(), self.seconds, set()),
        }
        return self._object("apps/v1", "Deployment", "serve", SERVER) | {"spec": spec}

    def inference_service(self) -> Object:
        """The servers as KServe makes them."""
        pod = self._pod(SERVER, self.server(), self.seconds, set())
        [container] = pod["spec"]["containers"]
        container["name"] = CONTAINER
        container["env"].append({"name": "PROTOCOL", "value": "v2"})
        del pod["spec"]["restartPolicy"]  # KServe's
        one = self._object("serving.kserve.io/v1beta1", "InferenceService", "serve", SERVER)
        one["metadata"]["annotations"] = dict(STANDARD)
        scale = {"minReplicas": self.request.servers, "maxReplicas": self.request.servers}
        return one | {"spec": {"predictor": {**scale, "deploymentStrategy": dict(ONE_MORE), **pod["spec"]}}}

    @property
    def seconds(self) -> int:
        """Seconds in which a server ends."""
        return self.request.drain + FINISH_SECONDS + SPARE_SECONDS

    def server(self) -> Object:
        """The container that answers."""
        memory = self.request.server_memory or server_bytes(self.sections)
        command = ["satrap", "serve", f"{pods.RUN}/{self.request.name}", "--follow"]
        command += ["--name", self.request.name, "--listen", f"0.0.0.0:{pods.SERVE_PORT}"]
        command += ["--key", pods.SERVE_KEY, "--metrics", f"0.0.0.0:{pods.METRICS}"]
        command += ["--drain", str(self.request.drain)]
        mounts = {"serve-key": pods.SERVE_KEY.rpartition("/")[0], "run": pods.RUN}
        container = self._container(SERVER, command, memory, self.request.server_cpu, mounts)
        container["ports"] = [
            {"name": "http", "containerPort": pods.SERVE_PORT},
            {"name": "metrics", "containerPort": pods.METRICS},
        ]
        ready, alive = probe("/ready", pods.SERVE_PORT), probe("/live", pods.SERVE_PORT)
        period = 2
        return container | {
            "startupProbe": alive | {"periodSeconds": period, "failureThreshold": LOAD_SECONDS // period},
            "readinessProbe": ready | {"periodSeconds": period, "failureThreshold": 1},
            "livenessProbe": alive | {"periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        }


def kserve(recipe: Recipe, request: Request) -> str:
    """Return YAML of KServe's InferenceService for the run of a recipe; its head says how to use it.

    Raises:
        ConfigError: the memory of a server is not known, or it would have no pods.
    """
    if request.servers < 1:
        raise ConfigError("an InferenceService needs a server", where="--servers", fix="ask for 1 or more")
    if request.server_memory is None and memory_of(recipe.sections) is None:
        raise ConfigError(
            "embedding.memory is not set",
            where=recipe.source.where(("embedding", "memory")),
            why="a pod is killed beyond its memory, which must be asked for before",
            fix="set it, or give the memory of a server: --server-memory SIZE",
        )
    servers = Servers(request, pods.PodRecipe(recipe, {}, journal=False))
    head = [
        f"Made by satrap {version('satrap')}: satrap deploy kserve",
        "",
        *head_of_servers(request),
        f"it serves folder {request.name} in the volume of claim {request.name}-run",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + to_yaml(servers.inference_service())


def head_of_servers(request: Request) -> list[str]:
    """Return how to make the key of clients, as lines for people."""
    kubectl = f"kubectl -n {request.namespace}" if request.namespace else "kubectl"
    secret = request.serve_secret or f"{request.name}-serve"
    return [
        "once, before: the key that clients send, which is not that of the cluster",
        "  satrap key serve.key",
        f"  {kubectl} create secret generic {secret} --from-file=serve.key",
    ]
