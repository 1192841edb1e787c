"""Kubernetes objects that serve the feed of a run: plain objects, and KServe's."""

from __future__ import annotations

from importlib.metadata import version

from satrap.config import Recipe
from satrap.config.checks.tables import memory_of
from satrap.errors import ConfigError
from satrap.tools.deploy import recipe as pods
from satrap.tools.deploy.manifests import SERVER, Manifests, Object, probe
from satrap.tools.deploy.request import DeployRequest
from satrap.tools.deploy.sizes import server_bytes
from satrap.tools.deploy.text import to_yaml

FINISH_SECONDS = 30
"""Seconds that `satrap serve` has for finishing requests after it stops accepting connections."""
SPARE_SECONDS = 10
"""Extra seconds before a server is killed."""
LOAD_SECONDS = 1800
"""Seconds for reading the rows before a server counts as failed."""
ONE_MORE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
"""Replacement of pods: a new pod is ready before an old one ends."""
CONTAINER = "kserve-container"
"""KServe's name for the serving container."""
STANDARD = {"serving.kserve.io/deploymentMode": "Standard"}
"""Use plain Deployments, because Knative allows only one port and by default no volume claims."""


class Servers(Manifests):
    """Makes the objects that serve a run: every pod holds all rows and follows the run's feed.

    A terminating pod keeps answering for `drain` seconds while it is not ready, so no request is sent to a
    pod that has ended. `satrap serve --drain` does this, so no preStop hook is needed.
    """

    def objects(self) -> list[Object]:
        """Return all objects, in the order in which they are needed."""
        return [self.service(), self.disruption_budget(), self.deployment()]

    def service(self) -> Object:
        """The address of the ready servers."""
        ports = [{"name": "http", "port": pods.SERVE_PORT, "targetPort": "http"}]
        return self._object("v1", "Service", "serve", SERVER) | {
            "spec": {"selector": self._labels(SERVER), "ports": ports}
        }

    def disruption_budget(self) -> Object:
        """One server may be evicted at a time."""
        return self._object("policy/v1", "PodDisruptionBudget", "serve", SERVER) | {
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": self._labels(SERVER)}}
        }

    def deployment(self) -> Object:
        """The servers; pods with a new image start next to the old ones."""
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
        del pod["spec"]["restartPolicy"]  # set by KServe
        service = self._object("serving.kserve.io/v1beta1", "InferenceService", "serve", SERVER)
        service["metadata"]["annotations"] = dict(STANDARD)
        scale = {"minReplicas": self.request.servers, "maxReplicas": self.request.servers}
        return service | {
            "spec": {"predictor": {**scale, "deploymentStrategy": dict(ONE_MORE), **pod["spec"]}}
        }

    @property
    def seconds(self) -> int:
        """Seconds that a server has to end."""
        return self.request.drain + FINISH_SECONDS + SPARE_SECONDS

    def server(self) -> Object:
        """The serving container."""
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


def kserve(recipe: Recipe, request: DeployRequest) -> str:
    """Return YAML of a KServe InferenceService for a recipe's run; comments at the top explain its use.

    Raises:
        ConfigError: the memory of a server is unknown, or the request has no servers.
    """
    if request.servers < 1:
        raise ConfigError(
            "an InferenceService needs at least one server",
            where="--servers",
            fix="set --servers to 1 or more",
        )
    if request.server_memory is None and memory_of(recipe.sections) is None:
        raise ConfigError(
            "embedding.memory is not set",
            where=recipe.source.where(("embedding", "memory")),
            why="a pod must reserve its memory in advance, and is killed when it uses more",
            fix="set embedding.memory, or give the memory of a server: --server-memory SIZE",
        )
    servers = Servers(request, pods.PodRecipe(recipe, {}, journal=False))
    head = [
        f"Made by satrap {version('satrap')}: satrap deploy kserve",
        "",
        *head_of_servers(request),
        f"serves folder {request.name} in the volume of claim {request.name}-run",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + to_yaml(servers.inference_service())


def head_of_servers(request: DeployRequest) -> list[str]:
    """Return instructions for making the clients' key, as lines of text."""
    kubectl = f"kubectl -n {request.namespace}" if request.namespace else "kubectl"
    secret = request.serve_secret or f"{request.name}-serve"
    return [
        "once, before: the key that clients send, which differs from the cluster's key",
        "  satrap key serve.key",
        f"  {kubectl} create secret generic {secret} --from-file=serve.key",
    ]
