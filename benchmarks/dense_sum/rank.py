"""One worker: adds numbers up with the others, and tells how long that takes. See README.md here."""

from __future__ import annotations

import json
import sys
import time

import satrap  # isort: skip  # before torch, as a program of satrap's does: see satrap.threads
import torch

from satrap.exchange.servers import Wire
from satrap.memory import keep_freed_memory


def main() -> None:
    """Rank 0 prints the milliseconds of each sum."""
    dense, numbers, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    keep_freed_memory()
    place = satrap.train.Place.from_environment(wire=Wire(dense=dense), threads=1)  # type: ignore[arg-type]
    workers, tensor, found = place.workers, torch.randn(numbers), []
    for _ in range(3 + repeats):
        mine = tensor.clone()
        workers.count([0.0])  # all begin together
        start = time.perf_counter()
        workers.data.sum(mine, exact=10)
        found.append(round(1000 * (time.perf_counter() - start), 2))
    if workers.rank == 0:
        print(json.dumps(found[3:]), flush=True)
    workers.close()


if __name__ == "__main__":
    main()
