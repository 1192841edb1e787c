"""Measurement of this machine's speed: lookups, updates, and all-to-alls between processes."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from satrap.dense import ConnectedWorkers
from satrap.errors import ExchangeError
from satrap.exchange.collective.torch_ranks import TorchRanks
from satrap.plan.topology import WorkerRates
from satrap.schema import Table
from satrap.store import StoreConfig
from satrap.store.shard import open_store

SMALL, LARGE = 8, 1 << 20
"""Bytes per rank in the two timed all-to-alls."""
ROWS = 32768
"""Rows in a timed lookup and update."""
REPEATS = 9
START_SECONDS = 120.0
_c10d: Any = dist
"""Parts of `torch.distributed` that lack type annotations."""


def rates(tables: Iterable[Table]) -> dict[int, WorkerRates]:
    """Return rows/s of this process by dim, each measured with the first table of that dim.

    Every repetition touches all rows, so many narrow rows are in the CPU caches.

    Args:
        tables: each with an optimizer.
    """
    rates_by_dim: dict[int, WorkerRates] = {}
    for table in tables:
        if table.dim not in rates_by_dim:
            rates_by_dim[table.dim] = _rates(table)
    return rates_by_dim


def _rates(table: Table) -> WorkerRates:
    ids = np.random.default_rng(0).permutation(np.arange(1, ROWS + 1, dtype=np.uint64))
    splits, gradients = np.array([0, ROWS], np.int64), np.ones((ROWS, table.dim), np.float32)
    with closing(open_store(StoreConfig(), [table])) as shard:
        _, slots = shard.lookup_slots(0, ids, splits)  # makes the rows
        lookup = _seconds(lambda: shard.lookup_slots(0, ids, splits))
        update = _seconds(lambda: shard.update_group(0, ids, splits, gradients, lr_scale=1.0, slots=slots))
    return WorkerRates(ROWS / lookup, ROWS / update)


def network(workers: int) -> tuple[float, float]:
    """Return (bytes/s, seconds of an almost empty all-to-all) between processes of this machine.

    Args:
        workers: processes to start, >= 2; each sends through loopback as `CollectiveExchange` does.

    Raises:
        ExchangeError: a process is lost.
    """
    wait = timedelta(seconds=START_SECONDS)
    store = _c10d.TCPStore("127.0.0.1", 0, None, True, wait, wait_for_workers=False)
    spawn = multiprocessing.get_context("spawn")  # a fork would break PyTorch's threads
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        address = f"127.0.0.1:{store.port}"
        ranks = [pool.submit(probe, address, rank, workers) for rank in range(workers)]
        try:
            small, large = np.max([rank.result() for rank in ranks], axis=0)
        except BrokenProcessPool as error:
            raise ExchangeError(
                "a process that measures the network has ended", fix="try again, or set the speeds"
            ) from error
    # On a busy machine the small one may take longer; assume bytes take at least 1/4 of the large one.
    return (workers - 1) * (LARGE - SMALL) / max(large - small, large / 4), small


def probe(store: str, rank: int, size: int) -> tuple[float, float]:
    """Return the seconds of a small and a large all-to-all, in one of the processes of `network`."""
    with closing(ConnectedWorkers(store, rank, size)):
        ranks = TorchRanks()

        def send(count: int) -> Callable[[], object]:
            payload = np.zeros(count * size, np.uint8)
            return lambda: ranks.all_to_all(payload, [count] * size, [count] * size)

        return _seconds(send(SMALL)), _seconds(send(LARGE))


def _seconds(work: Callable[[], object]) -> float:
    """Return the median time of some work, after one warm-up."""
    times = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
