"""Kubernetes objects of a run with Ray: KubeRay makes the pods, and Ray places the processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from satrap.tools.deploy import recipe as pods
from satrap.tools.deploy.manifests import GPU, SPARE_SECONDS, Manifests, Object
from satrap.tools.deploy.sizes import PROCESS, held_bytes, shard_bytes

HEAD_BYTES, HEAD_CORES = 4 << 30, 2.0
"""Memory and cores of Ray's head pod, where `satrap train` also runs."""

RAY_BYTES = 1 << 30
"""Memory of Ray's own processes in a pod, including its object store."""

STORE_BYTES = 100 << 20
"""Bytes of each pod's object store, which satrap does not use."""

READY_SECONDS = 1800
"""Seconds until all pods are ready, including new nodes and the download of large images."""

SAFE = {
    "RAY_worker_niceness": "0",
    "RAY_worker_oom_score_adjustment": "0",
    # By default, Ray kills processes at 95 % memory usage, but rows may take more.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Ray's variables in all pods. By default, its processes have low priority and are killed first."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods of one kind, one process in each."""

    kind: str
    pods: int
    cores: float
    memory: int


class RayManifests(Manifests):
    """Makes the objects of a run on Ray.

    The job makes a Ray cluster: a head, and a pod for every shard, worker, loader and embedding worker. All
    pods mount the volume with the run folder. `satrap train` runs on the head and starts the other processes
    through Ray.
    """

    def objects(self) -> list[Object]:
        """Return all objects, in the order in which they are needed."""
        return [self.config_map(), self.run_claim(), *self.disruption_budgets(), self.ray_job()]

    def groups(self) -> list[PodGroup]:
        """The pods, by kind."""
        cluster, request = self.sections.cluster, self.request
        groups = [
            PodGroup(
                "worker",
                cluster.workers,
                request.worker_cpu,
                request.worker_memory + held_bytes(self.sections),
            ),
            PodGroup("loader", cluster.loaders, 1, PROCESS),
            PodGroup("embedding-worker", cluster.embedding_workers, 1, PROCESS),
        ]
        if self._holder == "shard":
            memory = request.shard_memory or shard_bytes(self.sections, cluster.shards)
            groups.insert(0, PodGroup("shard", cluster.shards, request.shard_cpu, memory))
        return [group for group in groups if group.pods]

    @property
    def _holder(self) -> str:
        """The kind of process that holds the rows."""
        return "shard" if self.sections.cluster.exchange == "servers" else "worker"

    def disruption_budgets(self) -> list[Object]:
        """A budget for the kind that holds rows: losing a pod costs the steps since the newest snapshot.

        It is a number because a RayCluster has no scale subresource. It uses our own labels because the name
        of the cluster is generated.
        """
        return [
            self._object("policy/v1", "PodDisruptionBudget", f"{group.kind}s", group.kind)
            | {
                "spec": {"minAvailable": group.pods, "selector": {"matchLabels": self._labels(group.kind)}},
            }
            for group in self.groups()
            if group.kind == self._holder
        ]

    def ray_job(self) -> Object:
        """The job: makes the Ray cluster, runs `satrap train` on its head, and ends both."""
        # The working folder of `satrap train` must exist on all nodes.
        command = f"cd {pods.RUN} && satrap train {pods.RECIPE} --output {self.request.name} --until-done"
        spec: dict[str, Any] = {
            "entrypoint": command,
            "shutdownAfterJobFinishes": True,
            "backoffLimit": max(self.sections.cluster.restarts, 1),
            "preRunningDeadlineSeconds": READY_SECONDS,
            "rayClusterSpec": {
                "rayVersion": self.request.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": self._head(),
                "workerGroupSpecs": [self._group(group) for group in self.groups()],
            },
        }
        if self.request.queue:
            spec["suspend"] = True  # Kueue resumes the job when all of its pods fit
        return self._object("ray.io/v1", "RayJob", "train", queued=True) | {"spec": spec}

    def _head(self) -> Object:
        container = self._ray_container("ray-head", HEAD_BYTES, HEAD_CORES, "head")
        return {
            "rayStartParams": self._start() | {"dashboard-host": "0.0.0.0"},
            "resources": {"CPU": "0"},  # no process of the run here
            "template": self._ray_pod("head", container),
        }

    def _group(self, one: PodGroup) -> Object:
        container = self._ray_container("ray-worker", one.memory + RAY_BYTES, one.cores, one.kind)
        has = {"CPU": f"{one.cores:g}", pods.ray_resource(one.kind): "1"}
        gpus = math.ceil(self.sections.cluster.resources.worker.gpu)
        if one.kind == "worker" and gpus:
            container["resources"]["limits"][GPU] = gpus
            has["GPU"] = str(gpus)
        return {
            "groupName": one.kind,
            "replicas": one.pods,
            "minReplicas": one.pods,
            "maxReplicas": one.pods,
            "rayStartParams": self._start(),
            "resources": has,
            "template": self._ray_pod(one.kind, container),
        }

    @staticmethod
    def _start() -> dict[str, str]:
        return {"object-store-memory": str(STORE_BYTES)}

    def _ray_container(self, name: str, memory: int, cores: float, kind: str) -> Object:
        mounts = {
            "recipe": pods.RECIPE.rpartition("/")[0],
            "run": pods.RUN,
            "key": pods.KEY.rpartition("/")[0],
        }
        mounts |= {"data": pods.DATA} if self.request.data_claim else {}
        if kind == self._holder and self.sections.embedding.tier is not None:
            mounts["tier"] = pods.TIER
        container = self._container(name, [], memory, cores, mounts)
        del container["command"]  # KubeRay sets it to ray start
        container["env"] += [{"name": key, "value": value} for key, value in SAFE.items()]
        container["securityContext"]["readOnlyRootFilesystem"] = False  # Ray writes to /tmp
        return container

    def _ray_pod(self, kind: str, container: Object) -> Object:
        pod = self._pod(kind, container, math.ceil(self.sections.cluster.grace) + SPARE_SECONDS, set())
        del pod["spec"]["restartPolicy"]  # set by KubeRay
        return pod
