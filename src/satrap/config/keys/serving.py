"""Recipe section `serving`: limits, memory and number format of `satrap serve`."""

from typing import Annotated, Literal

from pydantic import Field

from satrap.config.keys.derive import Choice, Keys, keys_of
from satrap.config.keys.values import Address, Bytes, Count, Positive, Rate, Seconds
from satrap.settings.tier import Tier

SIZE = """Largest size on disk, for example 100GiB. A float32 number takes 4 bytes. The index takes 19 bytes
of `serving.memory` for each row that fits."""
SERVED = keys_of(Tier, "ServedTierKeys", {"size": (Bytes, Field(..., description=SIZE))})
SERVED.__doc__ = (
    "A file for rows that do not fit into `serving.memory`; requested rows are loaded into memory."
)
TIER = Choice(lambda _: "tier", {"tier": SERVED}, "")


class ServingKeys(Keys):
    """Limits, memory and number format of `satrap serve`; no effect on training."""

    max_items: Positive = 10_000
    """Maximum number of items in a request."""
    max_bytes: Bytes = 8 << 20
    """Maximum size of a request body, default 8 MiB."""
    max_queue: Positive = 256
    """Maximum number of queued requests; further requests are rejected."""
    deadline: Rate = 1.0
    """Seconds that a request may wait in the queue. Clients can set less with the header
    Satrap-Deadline-Ms."""
    max_staleness: Seconds | None = None
    """Age of the served version, for example 1m, from which `satrap serve --follow` reports that it is stale;
    default: never."""
    log: str | None = None
    """Folder (relative to the current one) or URL where responses are logged with their input values, as a
    log for `data.stream`; default: no log."""
    log_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of requests to log, chosen at random."""
    keep: Count = 3
    """Number of earlier versions that `satrap serve --follow` can roll back to at once. It keeps their
    networks and the old values of changed rows: 4 bytes per number and 9 per row."""
    keep_memory: Bytes = 256 << 20
    """Maximum memory for these versions, default 256 MiB. When it is full, the oldest versions are
    dropped."""
    memory: Bytes | None = None
    """Memory for the rows in a server or in one of its shards, for example 4GiB. Default: `embedding.memory`
    and the memory of single tables."""
    tier: Annotated[Tier, TIER] | None = None
    """A file for rows that do not fit into `serving.memory`; the most requested rows stay in memory. Default:
    `embedding.tier`, else none: a model that does not fit is rejected."""
    shards: list[Address] = Field(default_factory=list)
    """HOST:PORT of the `satrap serve-shard` processes that hold the rows, in the order of their numbers;
    default: the rows are in the server."""
    shards_key: str | None = None
    """File with the key of these shards, made by `satrap key`, relative to the current folder. Required for
    shards on other machines."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format of the network's arithmetic. float32: as in `satrap predict`, with the recipe's
    `dense.precision`. bfloat16: matrix products take 16-bit inputs, and scores differ from `satrap predict`
    in the third digit. It is faster on CPUs with AVX-512 BF16 or AMX, from some tens of items on."""
