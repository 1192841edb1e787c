"""What must be the same bytes on every machine: rows that a store has trained, and messages.

The numbers come from integers: the last bits of normal numbers differ between C libraries.
"""

from __future__ import annotations

import numpy as np

from satrap.batch import Batch, Jagged
from satrap.exchange.wire.formats import CODES, gather_gradients, scale_of, to_wire
from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from satrap.rpc.wire.batches import pack_batch
from satrap.rpc.wire.frames import Header, MessageKind, digest, encode
from satrap.schema import DTYPES, Table
from satrap.store import Admission, Eviction, Shard
from tests.golden.record import Record

OPTIMIZERS = (
    SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    Adagrad(lr=0.1, weight_decay=0.1, clip=0.5),
    RowWiseAdagrad(lr=0.1),
    Adam(lr=0.01),
    AdamW(lr=0.01, weight_decay=0.1, bound=0.02),
    FTRL(lr=0.1, l1=0.01, l2=0.1),
)


def store() -> Record:
    """Return digests of the rows of stores after twenty seeded updates, by optimizer and number format."""
    found = Record()
    for optimizer in OPTIMIZERS:
        for dtype in DTYPES:
            table = Table("a", dim=20, dtype=dtype, initial_scale=0.05)
            shard = Shard([table], optimizer=optimizer, seed=3)
            _train(shard, found, f"{type(optimizer).__name__} {dtype}")
    for policy in ("lru", "lfu", "ttl"):
        shard = Shard(
            [Table("a", dim=20)],
            optimizer=Adagrad(lr=0.1),
            seed=3,
            memory=120_000,
            admission=Admission(min_count=2, memory=4096),
            eviction=Eviction(policy, ttl=5 if policy == "ttl" else None),
        )
        _train(shard, found, policy)
    return found


def _train(shard: Shard, found: Record, name: str) -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        ids = np.unique(random.integers(0, 60, 400) * random.integers(0, 60, 400)).astype(np.uint64)
        rows = shard.lookup("a", ids)
        shard.update("a", ids, rows + random.random(rows.shape, np.float32) - np.float32(0.5))
    chunks = list(shard.export("a"))
    ids = np.concatenate([chunk.ids for chunk in chunks])
    order = np.argsort(ids)
    found.exact(f"{name}: ids", ids[order])
    for part in ("weights", "state"):
        found.exact(f"{name}: {part}", np.concatenate([getattr(chunk, part) for chunk in chunks])[order])
    shard.close()


def wire() -> Record:
    """Return digests of a message with a batch, and of rows and gradients in each number format."""
    found, random = Record(), np.random.default_rng(7)
    ids = random.integers(0, 2**64, 30, dtype=np.uint64)
    offsets = np.sort(np.append(random.integers(0, 30, 9), [0, 30]))
    batch = Batch(
        10,
        {"one": Jagged(ids[:10]), "several": Jagged(ids, offsets, random.random(30).astype(np.float32))},
        numeric=random.random((10, 3)).astype(np.float32),
        labels=(random.random((10, 1)) < 0.5).astype(np.float32),
        position={"cursor": [1, 2]},
    )
    parts = pack_batch(batch, {"about": "a batch"})
    header = Header(
        int(MessageKind.LOOKUP), epoch=1, client=2, sequence=3, acknowledged=4, step=5, lr_scale=0.5
    )
    found.exact("message", encode(header, digest(parts)) + b"".join(map(bytes, parts)))
    rows = np.ldexp(random.random((50, 12), np.float32) - np.float32(0.5), random.integers(-20, 20, (50, 1)))
    for name, code in CODES.items():
        found.exact(f"rows as {name}", to_wire(rows, code))
        found.exact(f"gradients as {name}", gather_gradients(rows, None, code, scale_of(rows, code))[0])
    return found
