"""The section `serving` of a recipe: what `satrap serve` allows, keeps and computes in."""

from typing import Annotated, Literal

from pydantic import Field

from satrap.config.derive import Keys
from satrap.config.values import Address, Bytes, Count, Positive, Rate, Seconds


class ServedTier(Keys):
    """A file for rows that do not fit into `serving.memory`; they come to memory when they are asked for."""

    path: str = Field(min_length=1)
    """Folder on a fast disk of the machine that has the rows."""
    size: Bytes
    """Largest size on disk, for example 100GiB: 4 bytes a number of float32. Its index takes 19 bytes of
    `serving.memory` for each row that fits."""


class Serving(Keys):
    """What clients may ask of `satrap serve`; has no effect on training."""

    max_items: Positive = 10_000
    """Most items of a request."""
    max_bytes: Bytes = 8 << 20
    """Largest body of a request, default 8 MiB."""
    max_queue: Positive = 256
    """Most requests that wait to be scored; one more is refused."""
    deadline: Rate = 1.0
    """Seconds a request may wait to be scored. A client may ask for less by the header Satrap-Deadline-Ms."""
    max_staleness: Seconds | None = None
    """Age of the served version, for example 1m, from which a server that follows says that it is stale;
    default: never."""
    log: str | None = None
    """Folder (relative to the current one) or URL to which answers are written with the values they were
    computed from, as a log for `data.stream`; default: nowhere."""
    log_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that are logged, chosen at random."""
    keep: Count = 3
    """Versions before the served one that a server that follows goes back to at once: it keeps their networks
    and the old values of rows that changed, 4 bytes a number and 9 a row."""
    keep_memory: Bytes = 256 << 20
    """Most memory of them, default 256 MiB; beyond it, the oldest go."""
    memory: Bytes | None = None
    """Memory of the rows in a server or in one of its shards, for example 4GiB; default: as
    `embedding.memory` and those of tables say."""
    tier: ServedTier | None = None
    """Where rows that do not fit into `serving.memory` are; those that requests ask for most often are in
    memory. Default: as `embedding.tier` says, and else nowhere: a model that does not fit is refused."""
    shards: list[Address] = Field(default_factory=list)
    """Processes of `satrap serve-shard` that have the rows, as HOST:PORT in the order of their numbers;
    default: the rows are in the server."""
    shards_key: str | None = None
    """File with the key of these shards, made by `satrap key`, relative to the current folder; needed for
    shards on other machines."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format in which the network computes. float32: as `satrap predict`, so with the recipe's
    `dense.precision`. bfloat16: factors of products have 16 bits; scores differ from those of predict in the
    third digit. It pays on processors with AVX-512 BF16 or AMX, from some tens of items on."""
