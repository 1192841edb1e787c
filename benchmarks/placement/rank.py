"""One worker: trains a warm-up epoch and a measured one, and reports its cost. See README.md here."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from satrap.batch import Batch
from satrap.config import load
from satrap.exchange.collective import Placement
from satrap.exchange.servers import Wire


class First:
    """The first batches of a data set, the same in every epoch."""

    def __init__(self, data: Any, count: int) -> None:
        self._data, self._count = data, count

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        return itertools.islice(self._data.batches(), self._count)


def main() -> None:
    """Train; rank 0 prints ms per step and its parts, and the KiB that it sent, for the measured epoch."""
    options = json.loads(os.environ["RANK_OPTIONS"])
    recipe = load(options["recipe"], [f"data.train={options['data']}"])
    schema = recipe.schema()
    place = satrap.train.WorkerContext.from_environment(
        wire=Wire(*options["wire"]),
        placement=Placement(**options["placement"]),
        pools=not options["lookahead"],
        threads=1,
    )
    towers: dict[str, dict[str, Any]] = {
        "tiny": {"bottom": [32], "hidden": [64, 32]},
        "dlrm": {"bottom": [512, 256], "hidden": [1024, 1024, 512, 256]},
    }
    torch.manual_seed(1)
    trainer = satrap.Trainer(
        satrap.models.DLRM(schema, **towers[options["tower"]]),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.02),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        mode="sync",
        lookahead=options["lookahead"],
        place=place,
    )
    batch_size, steps = options["batch_size"], options["steps"]
    read = satrap.data.read(options["data"], schema, batch_size=batch_size, shuffle=False)
    data = First(read.with_options(**place.share), steps)
    trainer.fit(data)
    before, start = trainer.exchange.telemetry.traffic(), time.perf_counter()
    result = trainer.fit(data)
    seconds, after = time.perf_counter() - start, trainer.exchange.telemetry.traffic()
    report = {
        "ms": 1000 * seconds / steps,
        "stages_ms": {name: 1000 * s / steps for name, s in result.traffic["stage_seconds"].items()},
        "sent_kib": (after.sent - before.sent) / steps / 1024,
        "lookup_ms": 1000 * (after.lookups.seconds - before.lookups.seconds) / steps,
        "push_ms": 1000 * (after.pushes.seconds - before.pushes.seconds) / steps,
    }
    if place.workers.rank == 0:
        print(json.dumps(report), flush=True)
    place.workers.meet("done")
    trainer.close()
    place.workers.close()


if __name__ == "__main__":
    main()
