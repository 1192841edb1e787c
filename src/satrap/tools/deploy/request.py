"""Settings of `satrap deploy kubernetes` and `kserve`, in addition to the recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from satrap.errors import ConfigError

LONGEST_NAME = 40
"""Maximum length in characters. Names of pods and labels append to it and may have 63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """Settings of `satrap deploy kubernetes`.

    Args:
        name: prefix of the names of all objects: lowercase letters, digits and "-".
        image: container image with satrap.
        namespace: namespace of all objects; None: the current namespace of kubectl.
        key_secret: Secret that holds the cluster's key as `cluster.key`; None: `NAME-key`.
        data_claim: PersistentVolumeClaim with the data; paths of the recipe are relative to its root.
        env_secrets: Secrets whose entries are environment variables, for example of an object store.
        service_account: service account of all pods; None: the namespace's default.
        storage: bytes of the volume with the run folder.
        storage_class: storage class of all volumes; None: the cluster's default.
        shared: whether shards also mount the volume of the run folder, and write snapshots there.
        journal: bytes of a shard's volume for its journal; None: twice its memory.
        shard_memory: bytes of memory of a shard; None: computed by `sizes`.
        worker_memory: bytes of memory of each worker in addition to rows.
        shard_cpu, worker_cpu: cores of a shard, and of each worker.
        shard_nodes, worker_nodes: labels of the nodes for shards, and for workers; taints of the same key and
            value are tolerated.
        one_zone: whether all pods must be in one zone.
        queue: LocalQueue of Kueue; None: none.
        ray_version: Ray's version in the image, if the recipe has `cluster.launcher: ray`.
        servers: number of pods that serve the run's feed; 0: none.
        server_memory: bytes of memory of each server; None: computed by `sizes`.
        server_cpu: cores of each server.
        drain: seconds that a server keeps answering after SIGTERM, until load balancers react.
        serve_secret: Secret that holds the clients' key as `serve.key`; None: `NAME-serve`.

    Raises:
        ConfigError: the name is not valid in Kubernetes.
    """

    name: str
    image: str
    namespace: str | None = None
    key_secret: str | None = None
    data_claim: str | None = None
    env_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    storage: int = 20 << 30
    storage_class: str | None = None
    shared: bool = False
    journal: int | None = None
    shard_memory: int | None = None
    worker_memory: int = 4 << 30
    shard_cpu: float = 2.0
    worker_cpu: int = 4
    shard_nodes: Mapping[str, str] = field(default_factory=dict)
    worker_nodes: Mapping[str, str] = field(default_factory=dict)
    one_zone: bool = False
    queue: str | None = None
    ray_version: str = "2.60.0"
    servers: int = 0
    server_memory: int | None = None
    server_cpu: float = 2.0
    drain: int = 15
    serve_secret: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name) or len(self.name) > LONGEST_NAME:
            raise ConfigError(
                f"{self.name!r} is not a valid name in Kubernetes",
                where="--name",
                fix=f"use at most {LONGEST_NAME} lowercase letters, digits and '-', beginning with a letter",
            )


def name_of(recipe: str) -> str:
    """Return a valid object name that is close to a recipe's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", recipe.lower())[:LONGEST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"run-{plain}"[:LONGEST_NAME].strip("-")
