"""Kubernetes objects of a run, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from satrap.config.keys.sections import Sections
from satrap.tools.deploy import recipe as pods
from satrap.tools.deploy.request import DeployRequest
from satrap.tools.deploy.sizes import shard_bytes, trainer_bytes

Object = dict[str, Any]

USER = 10001
"""User and group of all processes; exists in the images."""
SHM = 1 << 30
"""Bytes of shared memory that NCCL uses between the GPUs of a pod."""
SHARD_SECONDS = 60
"""Seconds for a shard to finish its current request and end."""
SPARE_SECONDS = 30
"""Seconds for the run to end after its workers have saved."""
SERVER = "server"
"""Component and container of the serving pods, which only read the run folder."""
GPU = "nvidia.com/gpu"
"""The resource name for GPUs of a pod."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """Makes the objects of a run; `shards` is 0 if workers hold the rows.

    Args:
        request: the user's settings.
        made: the recipe of the pods.
    """

    request: DeployRequest
    made: pods.PodRecipe

    @property
    def sections(self) -> Sections:
        """The keys of the pods' recipe."""
        return self.made.recipe.sections

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.sections.cluster.addresses)

    def objects(self) -> list[Object]:
        """Return all objects, in the order in which they are needed."""
        shards = [self.service(), self.stateful_set(), self.disruption_budget()] if self.shards else []
        return [self.config_map(), self.run_claim(), *shards, self.job()]

    def config_map(self) -> Object:
        """The recipe and the user's code."""
        return self._object("v1", "ConfigMap", "recipe") | {"data": self.made.files}

    def run_claim(self) -> Object:
        """The volume with the run folder."""
        access = "ReadWriteMany" if self.request.shared or self.made.ray else "ReadWriteOnce"
        return self._object("v1", "PersistentVolumeClaim", "run") | {
            "spec": self._claim(self.request.storage, access)
        }

    def service(self) -> Object:
        """DNS names of the shards, also while they recover, because workers then wait for them."""
        ports = [
            {"name": "rows", "port": pods.SHARD_PORT},
            {"name": "metrics", "port": pods.SHARD_METRICS},
        ]
        return self._object("v1", "Service", "shards", "shard") | {
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": self._labels("shard"),
                "ports": ports,
            }
        }

    def disruption_budget(self) -> Object:
        """How many shards may be evicted at a time: none if rows are only in memory."""
        return self._object("policy/v1", "PodDisruptionBudget", "shards", "shard") | {
            "spec": {
                "maxUnavailable": int(self.made.journal),
                "selector": {"matchLabels": self._labels("shard")},
            }
        }

    def stateful_set(self) -> Object:
        """The shards."""
        memory = self.request.shard_memory or shard_bytes(self.sections, self.shards)
        command = ["satrap", "shard", "--listen", f"0.0.0.0:{pods.SHARD_PORT}", "--key", pods.KEY]
        command += ["--metrics", f"0.0.0.0:{pods.SHARD_METRICS}"]
        claims, mounts = [], {"key": pods.KEY.rpartition("/")[0]}
        if self.made.journal:
            command += ["--journal", f"{pods.JOURNAL}/shard"]
            claims.append(("journal", self.request.journal or 2 * memory))
            mounts["journal"] = pods.JOURNAL
        if self.sections.embedding.tier is not None:
            claims.append(("tier", self.sections.embedding.tier.size // self.shards))
            mounts["tier"] = pods.TIER
        if self.request.shared:
            mounts["run"] = pods.RUN
        container = self._container("shard", command, memory, self.request.shard_cpu, mounts)
        container["ports"] = [
            {"name": "rows", "containerPort": pods.SHARD_PORT},
            {"name": "metrics", "containerPort": pods.SHARD_METRICS},
        ]
        ready, alive = probe("/ready", pods.SHARD_METRICS), probe("/metrics", pods.SHARD_METRICS)
        container |= {
            "startupProbe": alive | {"periodSeconds": 2, "failureThreshold": 150},
            "readinessProbe": ready | {"periodSeconds": 5},
            "livenessProbe": alive | {"periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        }
        claimed = [
            {"metadata": {"name": name}, "spec": self._claim(size, "ReadWriteOnce")} for name, size in claims
        ]
        spec = {
            "serviceName": f"{self.request.name}-shards",
            "replicas": self.shards,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": self._labels("shard")},
            "template": self._pod("shard", container, SHARD_SECONDS, {name for name, _ in claims}),
            "volumeClaimTemplates": claimed,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
        }
        return self._object("apps/v1", "StatefulSet", "shard", "shard", queued=True) | {"spec": spec}

    def job(self) -> Object:
        """The training pod, which is replaced by a new one until the run is complete."""
        cluster = self.sections.cluster
        memory = trainer_bytes(self.sections, self.request.worker_memory)
        helpers = cluster.loaders + cluster.embedding_workers
        mounts = {"recipe": pods.RECIPE.rpartition("/")[0], "run": pods.RUN}
        mounts |= {"key": pods.KEY.rpartition("/")[0]} if self.shards else {}
        mounts |= {"data": pods.DATA} if self.request.data_claim else {}
        if not self.shards and self.sections.embedding.tier is not None:
            mounts["tier"] = pods.TIER
        command = ["satrap", "train", pods.RECIPE, "--output", f"{pods.RUN}/{self.request.name}"]
        command += ["--until-done"]
        cores = cluster.workers * self.request.worker_cpu + helpers
        container = self._container("train", command, memory, cores, mounts)
        container["ports"] = [{"name": "metrics", "containerPort": pods.METRICS}]
        container["readinessProbe"] = probe("/ready", pods.METRICS) | {"periodSeconds": 10}
        if self.sections.training.device == "cuda":
            container["resources"]["limits"][GPU] = cluster.workers
        spec = {
            "backoffLimit": max(cluster.restarts, 1),
            "podReplacementPolicy": "Failed",  # two pods must not write to one run folder
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "template": self._pod("train", container, math.ceil(cluster.grace) + SPARE_SECONDS, set()),
        }
        return self._object("batch/v1", "Job", "train", "train", queued=True) | {"spec": spec}

    def _labels(self, component: str = "") -> dict[str, str]:
        labels = {"app.kubernetes.io/name": "satrap", "app.kubernetes.io/instance": self.request.name}
        return labels | ({"app.kubernetes.io/component": component} if component else {})

    def _object(
        self, version: str, kind: str, name: str, component: str = "", *, queued: bool = False
    ) -> Object:
        labels = self._labels(component)
        if queued and self.request.queue:
            labels["kueue.x-k8s.io/queue-name"] = self.request.queue
        meta: Object = {"name": f"{self.request.name}-{name}", "labels": labels}
        if self.request.namespace:
            meta["namespace"] = self.request.namespace
        return {"apiVersion": version, "kind": kind, "metadata": meta}

    def _claim(self, size: int, access: str) -> Object:
        of_class = {"storageClassName": self.request.storage_class} if self.request.storage_class else {}
        return {
            "accessModes": [access],
            "resources": {"requests": {"storage": quantity(size)}},
            **of_class,
        }

    def _container(
        self, name: str, command: list[str], memory: int, cores: float, mounts: dict[str, str]
    ) -> Object:
        fixed = {"recipe", "key", "data", "serve-key"} | ({"run"} if name == SERVER else set())
        places = (mounts[key] for key in ("journal", "run", "tier") if key in mounts and key not in fixed)
        persistent = next(places, pods.SCRATCH)
        variables = {
            "HOME": pods.SCRATCH,
            "TMPDIR": pods.SCRATCH,
            "NUMBA_CACHE_DIR": f"{persistent}/machine-code",
        }
        mounted: list[Object] = [{"name": "scratch", "mountPath": pods.SCRATCH}]
        for volume, path in mounts.items():
            read_only = {"readOnly": True} if volume in fixed else {}
            mounted.append({"name": volume, "mountPath": path, **read_only})
        if name == "train" and self.sections.training.device == "cuda":
            mounted.append({"name": "shm", "mountPath": "/dev/shm"})
        environment: Object = {"env": [{"name": key, "value": value} for key, value in variables.items()]}
        if self.request.env_secrets:
            environment["envFrom"] = [{"secretRef": {"name": secret}} for secret in self.request.env_secrets]
        return {
            "name": name,
            "image": self.request.image,
            "command": command,
            **environment,
            "resources": {
                "requests": {"cpu": f"{cores:g}", "memory": quantity(memory)},
                "limits": {"memory": quantity(memory)},
            },
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": mounted,
        }

    def _pod(self, component: str, container: Object, seconds: int, claimed: set[str]) -> Object:
        used = [mount["name"] for mount in container["volumeMounts"]]
        of_kind = {"shard": self.request.shard_nodes, SERVER: {}}
        nodes = of_kind.get(component, self.request.worker_nodes)
        tolerated = [
            {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
            for key, value in nodes.items()
        ]
        if GPU in container["resources"]["limits"]:
            tolerated.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
        account = {"serviceAccountName": self.request.service_account} if self.request.service_account else {}
        spec = {
            **account,
            "automountServiceAccountToken": False,
            "restartPolicy": "Always" if component in of_kind else "Never",
            "terminationGracePeriodSeconds": seconds,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"nodeSelector": dict(nodes)} if nodes else {}),
            **({"tolerations": tolerated} if tolerated else {}),
            **self._affinity(component),
            "containers": [container],
            "volumes": [self._volume(name) for name in used if name not in claimed],
        }
        return {"metadata": {"labels": self._labels(component)}, "spec": spec}

    def _affinity(self, component: str) -> Object:
        """Spread shards and servers over hosts if possible; with `one_zone`, keep all pods in one zone."""
        terms: Object = {}
        if self.request.one_zone:
            near = {
                "labelSelector": {"matchLabels": self._labels()},
                "topologyKey": "topology.kubernetes.io/zone",
            }
            terms["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [near]}
        if {"shard": self.shards, SERVER: self.request.servers}.get(component, 0) > 1:
            apart = {
                "labelSelector": {"matchLabels": self._labels(component)},
                "topologyKey": "kubernetes.io/hostname",
            }
            preferred = [{"weight": 100, "podAffinityTerm": apart}]
            terms["podAntiAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        return {"affinity": terms} if terms else {}

    def _volume(self, name: str) -> Object:
        run = self.request.name
        tier = self.sections.embedding.tier
        secret = self.request.key_secret or f"{run}-key"
        sources: dict[str, Object] = {
            "scratch": {"emptyDir": {}},
            "recipe": {"configMap": {"name": f"{run}-recipe"}},
            "key": {"secret": {"secretName": secret, "defaultMode": 0o440}},
            "serve-key": {
                "secret": {"secretName": self.request.serve_secret or f"{run}-serve", "defaultMode": 0o440}
            },
            "run": {"persistentVolumeClaim": {"claimName": f"{run}-run"}},
            "data": {"persistentVolumeClaim": {"claimName": self.request.data_claim, "readOnly": True}},
            "tier": {"emptyDir": {"sizeLimit": quantity(tier.size)} if tier else {}},
            "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": quantity(SHM)}},
        }
        return {"name": name, **sources[name]}


def quantity(count: float) -> str:
    """Return bytes in Kubernetes' notation, rounded up to MiB."""
    return f"{math.ceil(count / 2**20)}Mi"


def probe(path: str, port: int) -> Object:
    """Return an HTTP probe."""
    return {"httpGet": {"path": path, "port": port}}
