"""The program of a worker process in the tests of `ConnectedWorkers`.

It does what each line on standard input says, and answers with one line.
"""

import os
import sys
import time

import numpy as np
import torch

from satrap.dense import ConnectedWorkers
from satrap.errors import ExchangeError
from satrap.exchange.collective.torch_ranks import TorchRanks
from satrap.exchange.servers import Wire

RANKS: list[TorchRanks] = []


def terms(size: int) -> np.ndarray:
    """What the workers add up: float32[workers, n]."""
    return np.random.default_rng(size).standard_normal((size, 700)).astype(np.float32)


def exchange(workers: ConnectedWorkers, words: list[str]) -> list[list[int]]:
    """Send each of two workers a byte; each waits so many seconds before. Or leave them."""
    from satrap.train.worker_context import WRITING_SECONDS, torch_ranks  # what no other test waits for

    if words == ["leave"]:
        RANKS.pop().close()
        return []
    if not RANKS:
        RANKS.append(torch_ranks(workers, WRITING_SECONDS))
    time.sleep(float(words[workers.rank]) if words else 0)
    found = RANKS[0].all_to_all(np.full(2, workers.rank, np.uint8), [1, 1], [1, 1])
    return [part.tolist() for part in found]


def added(workers: ConnectedWorkers, exact: int | None) -> list[object]:
    rank = workers.rank
    tensor = (
        torch.tensor([1.5, float(rank)]) if exact is None else torch.from_numpy(terms(workers.size)[rank])
    )
    workers.sum(tensor, exact=exact)
    return tensor.tolist() if exact is None else [tensor.tolist(), workers.rounding]


def met(workers: ConnectedWorkers) -> bool:
    """Meet the others; return whether there was time for something else meanwhile."""
    waited: list[None] = []
    workers.meet("council", meanwhile=lambda: waited.append(None))
    return bool(waited)


def do(workers: ConnectedWorkers, command: str) -> object:
    rank = workers.rank
    match command.split():
        case ["sum", *exact]:
            return added(workers, int(exact[0]) if exact else None)
        case ["count"]:
            return workers.count([1.0, 10.0**rank])
        case ["broadcast"]:
            tensors = [torch.full((2,), float(rank)), torch.tensor([rank])]
            workers.broadcast(tensors)
            return [t.tolist() for t in tensors]
        case ["share"]:
            return workers.share(b"of rank 0" if rank == 0 else b"")
        case ["gather"]:
            return workers.gather(b"x" * rank)
        case ["solo", seconds]:
            start = time.monotonic()
            workers.solo("waiting", lambda: time.sleep(float(seconds)))
            return time.monotonic() - start >= float(seconds) * 0.9
        case ["ranks", *words]:
            return exchange(workers, words)
        case ["called"]:
            return workers.called("council")
        case ["meet"]:
            return met(workers)
    raise AssertionError(command)


def main() -> None:
    store, rank, world, deadline, dense = sys.argv[1:]
    wire = Wire(dense=dense)  # type: ignore[arg-type]
    workers = ConnectedWorkers(store, int(rank), int(world), deadline=float(deadline), wire=wire)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            print(do(workers, line), flush=True)
        except ExchangeError as error:
            print("error:", " | ".join(str(error).splitlines()), flush=True)
    workers.close()
    print("closed", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
