"""Cost of counting the uses of rows at a shard, per request and per id. See README.md here."""

from __future__ import annotations

import argparse
import secrets
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import satrap
from benchmarks.record import write
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import Session
from satrap.rpc.server.turns import execute
from satrap.rpc.wire.frames import FAILURE, Header, MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.store import StoreConfig

ROWS = 1_000_000


class Shard:
    """A shard without sockets that serves steps of one worker: a lookup, then the update of its rows."""

    def __init__(self, dim: int) -> None:
        table = satrap.Table("user", dim=dim, optimizer=satrap.optim.Adagrad(lr=0.01))
        config = ShardConfig([table], StoreConfig(1), 0, ShardMap(1))
        about = {"forward": "float16", "rank": 0, "world": 1, "mode": "hybrid", "ordered": False}
        self.service, self.session, self.number = Service(), Session(1, None), 0
        self.dim = dim
        self.do(MessageKind.HELLO, [pack_text(config.to_dict() | about | {"run": secrets.token_hex(4)})])

    def do(self, kind: MessageKind, parts: Sequence[object]) -> float:
        """Execute a request; return the seconds it took."""
        header = Header(kind, 1, 1, self.number)
        self.number += 1
        begun = time.perf_counter()
        answer = execute(self.service, Job(self.session, header, parts, 0, 0.0))
        seconds = time.perf_counter() - begun
        assert answer.header.kind != FAILURE
        return seconds

    def step(self, ids: np.ndarray) -> float:
        """Return the seconds of a step of unique ids, uint64[n]."""
        splits = np.array([0, len(ids)], np.int64)
        code, zeros = CODES["bfloat16"], np.zeros(len(ids) * self.dim * 2, np.uint8)
        lookup = self.do(MessageKind.LOOKUP, pack([Section(0, splits, ids)]))
        return lookup + self.do(
            MessageKind.UPDATE, pack([Section(0, splits, ids, code, self.dim, 1.0, zeros)])
        )


def main() -> None:
    """Measure and print; with --write also save the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ids", type=int, nargs="+", default=[10, 1_000, 10_000, 100_000])
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    shard, results = Shard(options.dim), {}
    uses = shard.service._rows.uses
    count = uses.count
    random = np.random.default_rng(1)
    for ids in options.ids:
        batches = [random.choice(ROWS, ids, replace=False).astype(np.uint64) for _ in range(8)]
        steps = min(500, max(8, 400_000 // ids))
        for batch in batches:
            shard.step(batch)
        figures = {"counting": [], "without": []}
        for _ in range(options.repeats):
            for name, times in figures.items():
                uses.count = count if name == "counting" else lambda *_: None  # type: ignore[method-assign]
                times.append(statistics.median(shard.step(batches[i % 8]) for i in range(steps)))
        each = {name: min(times) * 1e6 for name, times in figures.items()}
        alone, splits = [], np.array([0, ids], np.int64)
        for i in range(steps):
            begun = time.perf_counter()
            count(0, batches[i % 8], splits)
            alone.append(time.perf_counter() - begun)
        each["count_alone"] = statistics.median(alone) * 1e6
        results[str(ids)] = {f"{name}_us": value for name, value in each.items()}
        print(ids, results[str(ids)], flush=True)
    if options.write:
        write(Path(__file__).parent / "results", vars(options), results)


if __name__ == "__main__":
    main()
