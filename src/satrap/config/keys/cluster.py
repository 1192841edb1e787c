"""Keys of the recipe section `cluster`. The text below a key documents it."""

from typing import Annotated, Literal

from pydantic import Field

from satrap.config.keys.derive import Keys, settings
from satrap.config.keys.values import Address, Bytes, Count, Port, Positive, Rate, Share
from satrap.settings.wire import Wire

Placement = Literal["row_wise", "table_wise", "replicated"]
WIRE = settings(Wire)


class ResourcesKeys(Keys):
    """Resources that one process reserves in a Ray cluster. Ray does not stop a process from using more."""

    cpu: Share = 1.0
    """CPU cores per process, and compute threads per worker if there are several."""
    memory: Bytes | None = None
    """Memory, for example 64GiB; default none."""
    gpu: Share = 0.0
    """GPUs. A process sees only its reserved GPUs."""
    custom: dict[str, Rate] = Field(default_factory=dict)
    """Custom resources of the cluster's nodes: name -> amount."""


class RoleResourcesKeys(Keys):
    """Resources that each kind of process reserves in a Ray cluster."""

    shard: ResourcesKeys = ResourcesKeys()
    """A shard server."""
    worker: ResourcesKeys = ResourcesKeys()
    """A process that trains."""
    loader: ResourcesKeys = ResourcesKeys()
    """A process that reads data."""
    embedding_worker: ResourcesKeys = ResourcesKeys()
    """A process that pools rows."""


class ClusterKeys(Keys):
    """Processes and machines."""

    exchange: Literal["local", "servers", "collective"] = "local"
    """How workers reach the embedding rows. local: one process trains and holds all rows; servers: shard
    servers hold the rows; collective: each worker holds a part of every table, and all workers step
    together."""
    shards: Positive = 1
    """Number of processes that hold rows."""
    addresses: list[Address] = Field(default_factory=list)
    """HOST:PORT of running shards (`satrap shard`), in the order of their numbers. The run then starts no
    shards."""
    key: str | None = None
    """File with the cluster's key, made by `satrap key`, relative to the current folder. Required for shards
    on other machines. Default: none, for loopback addresses only."""
    workers: Positive = 1
    """Number of processes that train the dense network, each on its share of the data. Default: the size of
    `dense.mesh`."""
    loaders: Count = 0
    """Number of processes that read and batch data for the workers, at most one per worker. 0: workers
    read."""
    embedding_workers: Count = 0
    """Number of processes that look up rows at the shards and pool them for the workers, at most one per
    worker. 0: workers look up and pool."""
    placement: Placement | Literal["auto"] | None = None
    """Where the rows of a table are. With `exchange: collective`: row_wise, the default: each worker holds a
    part; table_wise: one worker holds all; replicated: every worker holds all; auto: as `satrap plan`
    computes. With `exchange: servers`: row_wise: shards hold all tables; default: in mode hybrid, every
    worker holds small tables, so that their rows are never stale."""
    placements: dict[str, Placement] = Field(default_factory=dict)
    """Placements of single tables: name -> placement. With `exchange: servers`, workers hold replicas of
    replicated tables, and shards hold row_wise tables. If all are replicated, no shards are started."""
    launcher: Literal["local", "ray"] = "local"
    """Where the processes run. local: on this machine; ray: on a Ray cluster (`pip install satrap[ray]`)."""
    address: Annotated[str, Field(pattern=r"^(auto|[^\s/]+:[0-9]{1,5})$")] | None = None
    """With `launcher: ray`: HOST:PORT of the head node, or auto for the Ray cluster running on this machine.
    Default: a new one-machine Ray that lives as long as the run."""
    resources: RoleResourcesKeys = RoleResourcesKeys()
    """With `launcher: ray`: resources of each process. They are reserved for all processes or for none."""
    wait: Share = 0.0
    """With `launcher: ray`: seconds to wait for these resources. Default 0: missing resources are an error at
    once."""
    wire: Annotated[Wire, WIRE] = Wire()
    """Number formats between workers and shards, or among workers. Async mode always uses float32."""
    deadline: Rate = 30.0
    """Seconds without an answer after which a shard or worker counts as lost. Work that one worker does
    alone, such as writing a snapshot, may take longer."""
    grace: Rate = 60.0
    """Seconds that workers have for saving after Ctrl-C or SIGTERM before they are killed."""
    restarts: Count = 3
    """Total number of restarts after killed processes: of a shard from its journal (`checkpoint.durability:
    journal`), or of all workers from a snapshot (`checkpoint.every_steps`)."""
    metrics_port: Port | None = None
    """Port of OpenMetrics over HTTP. 0: a free port for each process, printed; N: ports N, N + 1, ..., shards
    first. Default: none."""
    metrics_host: str = "127.0.0.1"
    """Address of these ports. Every client that reaches it can read counters and speeds."""

    @property
    def servers(self) -> int:
        """Number of shard servers that the run starts."""
        return self.shards if self.exchange == "servers" and not self.addresses else 0
