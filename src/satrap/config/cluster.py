"""The keys of a recipe's section `cluster`. The text below a key documents it."""

from typing import Annotated, Literal

from pydantic import Field

from satrap.config.derive import Keys
from satrap.config.values import Address, Bytes, Count, Port, Positive, Rate, Share

Placement = Literal["row_wise", "table_wise", "replicated"]


class Wire(Keys):
    """Number formats between processes; rows at rest have `embedding.dtype`."""

    forward: Literal["int8", "float16", "float32"] = "float16"
    """Format of rows that are looked up; int8: 8-bit numbers with a scale per row."""
    backward: Literal["int8", "bfloat16", "float16", "float32"] = "bfloat16"
    """Format of their gradients; int8 as for rows."""
    dense: Literal["int8", "bfloat16", "float16", "float32", "powersgd", "sign"] = "float32"
    """Format of the network's gradients, which several workers add up; int8: with a scale per 128 numbers. On
    the device cpu only. For slow networks, on any device: powersgd (products of thin matrices) and sign (one
    bit per number), which send later what they leave out of a step. Not where workers divide the network."""
    dense_rank: Positive = 4
    """With `dense: powersgd`: columns of these matrices; more are more exact, and more bytes."""


class Resources(Keys):
    """What one process asks of a Ray cluster. Ray counts this and keeps no process from using more."""

    cpu: Share = 1.0
    """Processors; of several workers, each computes with so many threads."""
    memory: Bytes | None = None
    """Memory, for example 64GiB; default none."""
    gpu: Share = 0.0
    """Devices. A process sees only those it was given."""
    custom: dict[str, Rate] = Field(default_factory=dict)
    """Resources that the cluster's nodes were given names for: name -> amount."""


class RoleResources(Keys):
    """What each process of a kind asks of a Ray cluster."""

    shard: Resources = Resources()
    """A shard server."""
    worker: Resources = Resources()
    """A process that trains."""
    loader: Resources = Resources()
    """A process that reads data."""
    embedding_worker: Resources = Resources()
    """A process that pools rows."""


class Cluster(Keys):
    """Processes and machines."""

    exchange: Literal["local", "servers", "collective"] = "local"
    """How ids reach the rows. local: in one process; servers: shards are processes of their own; collective:
    each worker holds a part of every table, and all take every step together."""
    shards: Positive = 1
    """Processes that hold rows."""
    addresses: list[Address] = Field(default_factory=list)
    """HOST:PORT of shards that run already, started with `satrap shard`, in the order of their numbers; the
    run then starts none."""
    key: str | None = None
    """File with the cluster's key, made by `satrap key`, relative to the current folder; needed for shards on
    other machines. Default: none, which loopback addresses need not have."""
    workers: Positive = 1
    """Processes that train the dense network, each on its share of the data; default as `dense.mesh` says."""
    loaders: Count = 0
    """Processes that read and batch data for the workers, at most one per worker; 0: workers read."""
    embedding_workers: Count = 0
    """Processes that look rows up at the shards and pool them for the workers, at most one per worker; 0:
    workers do it."""
    placement: Placement | Literal["auto"] = "row_wise"
    """Who holds the rows of a table, with the exchange collective. row_wise: each worker has a part;
    table_wise: one worker has all; replicated: every worker has all; auto: as `satrap plan` says."""
    placements: dict[str, Placement] = Field(default_factory=dict)
    """Tables that are placed otherwise: name -> placement. With the exchange servers, workers have replicas
    of replicated tables, and shards hold the others."""
    launcher: Literal["local", "ray"] = "local"
    """What starts the processes. local: this machine; ray: a Ray cluster, `pip install satrap[ray]`."""
    address: Annotated[str, Field(pattern=r"^(auto|[^\s/]+:[0-9]{1,5})$")] | None = None
    """With `launcher: ray`: HOST:PORT of the cluster's head, or auto for the one of this machine. Default: a
    Ray of this machine alone, which is started for the run and ends with it."""
    resources: RoleResources = RoleResources()
    """With `launcher: ray`: what each process asks for. All processes get theirs together, or none."""
    wait: Share = 0.0
    """With `launcher: ray`: seconds to wait for these resources. Default 0: an error says what is missing."""
    wire: Wire = Wire()
    """Number formats between workers and shards, or among workers; in async mode always float32."""
    deadline: Rate = 30.0
    """Seconds without an answer after which a shard or worker counts as lost. What one worker does alone,
    such as writing a snapshot, may take longer."""
    grace: Rate = 60.0
    """Seconds for workers to save after Ctrl-C or SIGTERM; then they are killed."""
    restarts: Count = 3
    """How many restarts after killed processes, in all: of a shard from its journal (`checkpoint.durability:
    journal`), or of all workers from a snapshot (`checkpoint.every_steps`)."""
    metrics_port: Port | None = None
    """Port of OpenMetrics over HTTP. 0: a free port for each process, printed; N: ports N, N + 1, ..., shards
    first. Default: none."""
    metrics_host: str = "127.0.0.1"
    """Address of these ports. Whoever reaches it can read counters and speeds."""

    @property
    def servers(self) -> int:
        """Number of shard servers that the run starts."""
        return self.shards if self.exchange == "servers" and not self.addresses else 0
