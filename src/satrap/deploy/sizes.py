"""How much memory the pods of a recipe need."""

from __future__ import annotations

from satrap.config.keys import CategoricalKeys, Sections
from satrap.config.tables import kept, memory_of
from satrap.plan.cluster.plan import FILLED
from satrap.store.aside import SHARE, SMALLEST
from satrap.store.directory import PLAIN_OVERHEAD

PROCESS = 1 << 30
"""Bytes of a process besides rows: Python with its libraries, messages, machine code."""
ORDER = 17
"""Bytes per row of the order of eviction, which a snapshot copies."""
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


def rows_bytes(sections: Sections, holders: int) -> int:
    """Return the memory for the rows of one of several processes that hold them.

    They are `embedding.memory`, or the sum of all tables' own, with the share that `satrap plan` leaves free,
    or with what a snapshot copies if that is more: rows that change before they are written, and the order of
    eviction.
    """
    memory, tables = memory_of(sections), kept(sections).values()
    assert memory is not None
    part = memory // holders
    copies = max(SMALLEST, part // SHARE)
    order = 0
    if any(table.eviction is not None for table in tables):
        staying = sum(table.memory or 0 for table in tables if table.eviction is None)
        features = [one for one in sections.features.values() if isinstance(one, CategoricalKeys)]
        narrowest = min((getattr(one, "dim") for one in features), default=1)  # noqa: B009 - made from a schema
        width = narrowest * _WIDTH[sections.embedding.dtype]
        order = ORDER * ((memory - staying) // holders) // (PLAIN_OVERHEAD + width)
    return int(max(part / FILLED, part + copies + order))


def shard_bytes(sections: Sections, shards: int) -> int:
    """Return the memory of the pod of a shard."""
    return PROCESS + rows_bytes(sections, shards)


def server_bytes(sections: Sections) -> int:
    """Return the memory of the pod of a server: `embedding.memory` with the share that stays free.

    It keeps no optimizer state, so this has room for the rows that change, and, if rows have as much state
    as weights, for all of them a second time.
    """
    memory = memory_of(sections)
    assert memory is not None
    return PROCESS + int(memory / FILLED)


def held_bytes(sections: Sections) -> int:
    """Return the memory for the rows that one worker holds: its part, or replicas."""
    cluster = sections.cluster
    holds = cluster.exchange != "servers" or "replicated" in cluster.placements.values()
    return rows_bytes(sections, cluster.workers) if holds else 0


def trainer_bytes(sections: Sections, worker: int) -> int:
    """Return the memory of the pod that trains: launcher, loaders, embedding workers, and all workers.

    Args:
        sections: of the recipe.
        worker: bytes of a worker besides rows.
    """
    cluster = sections.cluster
    others = 1 + cluster.loaders + cluster.embedding_workers
    return others * PROCESS + cluster.workers * (worker + held_bytes(sections))
