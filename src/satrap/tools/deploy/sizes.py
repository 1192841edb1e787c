"""Memory of a recipe's pods."""

from __future__ import annotations

from satrap.config.checks.tables import kept, memory_of
from satrap.config.keys.sections import Sections
from satrap.schema import Categorical
from satrap.store.memory.directory import PLAIN_OVERHEAD
from satrap.store.snapshot.copy_on_write import SHARE, SMALLEST
from satrap.tools.plan.cluster.plan import FILLED

PROCESS = 1 << 30
"""Bytes of a process in addition to rows: Python with its libraries, messages, machine code."""
ORDER = 17
"""Bytes per row of the eviction order, which a snapshot copies."""
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


def rows_bytes(sections: Sections, holders: int) -> int:
    """Return the memory for the rows of one of the `holders` processes.

    The memory is `embedding.memory`, or the sum of the tables' memory. Added is either the share that `satrap
    plan` leaves free or the copies that a snapshot makes, whichever is larger: rows that change before they
    are written, and the eviction order.
    """
    memory, tables = memory_of(sections), kept(sections).values()
    assert memory is not None
    part = memory // holders
    copies = max(SMALLEST, part // SHARE)
    order = 0
    if any(table.eviction is not None for table in tables):
        without_eviction = sum(table.memory or 0 for table in tables if table.eviction is None)
        features = [feature for feature in sections.features.values() if isinstance(feature, Categorical)]
        narrowest = min((feature.dim for feature in features), default=1)
        width = narrowest * _WIDTH[sections.embedding.dtype]
        order = ORDER * ((memory - without_eviction) // holders) // (PLAIN_OVERHEAD + width)
    return int(max(part / FILLED, part + copies + order))


def shard_bytes(sections: Sections, shards: int) -> int:
    """Return the memory of a shard's pod."""
    return PROCESS + rows_bytes(sections, shards)


def server_bytes(sections: Sections) -> int:
    """Return the memory of a server's pod: `embedding.memory` plus a free share.

    A server keeps no optimizer state, so there is room for changed rows and, if the optimizer state is as
    large as the weights, for a second copy of all rows.
    """
    memory = memory_of(sections)
    assert memory is not None
    return PROCESS + int(memory / FILLED)


def held_bytes(sections: Sections) -> int:
    """Return the memory for the rows that one worker holds: its part or its replicas."""
    cluster = sections.cluster
    holds = cluster.exchange != "servers" or "replicated" in cluster.placements.values()
    return rows_bytes(sections, cluster.workers) if holds else 0


def trainer_bytes(sections: Sections, worker: int) -> int:
    """Return the memory of the training pod: launcher, loaders, embedding workers and all workers.

    Args:
        sections: sections of the recipe.
        worker: bytes of a worker in addition to rows.
    """
    cluster = sections.cluster
    others = 1 + cluster.loaders + cluster.embedding_workers
    return others * PROCESS + cluster.workers * (worker + held_bytes(sections))
