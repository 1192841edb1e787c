"""Events of the batches of two workers, and the time of the batches: with and without `balance`.

`python -m benchmarks.histories.balance FOLDER`: the ratings of `benchmarks.histories`, with the last 100
films as history. A step waits for the slower worker. Its time here is processor time of one thread, one
worker after another, so that it does not depend on other load of the machine.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

import satrap
from benchmarks.histories.__main__ import ITEM
from benchmarks.histories.data_sets import movielens, parts_of
from benchmarks.record import write
from satrap.batch import Batch, EmbeddedBatch, JaggedRows

LENGTH, WORKERS = 100, 2
SEEN = satrap.Categorical(
    dim=16, table="movie", multi=True, pooling="none", sequence="past", max_values=LENGTH
)
SCHEMA = satrap.Schema(
    [satrap.Label(name="liked", column="rating", threshold=4)], {"movie": ITEM, "seen": SEEN}
)


def seconds(model: torch.nn.Module, batch: Batch) -> float:
    """Return the processor time of both passes of the network, the least of three; rows are random."""
    offsets, times = batch.ids["seen"].offsets, []
    assert offsets is not None
    for _ in range(3):
        seen = JaggedRows(torch.randn(int(offsets[-1]), 16, requires_grad=True), torch.from_numpy(offsets))
        embedded = EmbeddedBatch(
            batch.size, {"movie": torch.randn(batch.size, 16), "seen": seen}, torch.empty(batch.size, 0)
        )
        start = time.process_time()
        model(embedded).sum().backward()
        times.append(time.process_time() - start)
    return min(times)


def spread(steps: npt.NDArray[Any]) -> dict[str, float]:
    """Return the larger worker's figure over the mean of both, and the largest figure over the total mean."""
    return {
        "mean": float(steps.mean()),
        "step": float(steps.max(1).sum() / steps.mean(1).sum()),
        "largest": float(steps.max() / steps.mean()),
    }


def measured(train: pa.Table, size: int, balance: str | None, samples: int) -> dict[str, Any]:
    """Return the spread of events and token pairs over an epoch, and of seconds over its first part."""
    rows = satrap.data.read(train, SCHEMA, batch_size=size, shuffle=True)
    shares = [rows.with_options(worker=n, workers=WORKERS, balance=balance) for n in range(WORKERS)]
    # The last batch of an epoch is smaller in both cases.
    lengths = [
        [np.diff(batch.ids["seen"].offsets) for batch in share.batches() if batch.size == size]
        for share in shares
    ]
    every = np.array(lengths).swapaxes(0, 1)  # step, worker, row
    torch.manual_seed(0)
    model = satrap.models.create("hstu", SCHEMA, width=32)
    seconds(model, next(shares[0].batches()))  # the first time is not typical
    steps = islice(zip(*(share.batches() for share in shares), strict=False), samples // size)
    timed = np.array([[seconds(model, batch) for batch in step] for step in steps])
    return {
        "events": spread(every.sum(2)),
        "pairs": spread(((every + 1) * (every + 2) // 2).sum(2)),
        "seconds": spread(timed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--samples", type=int, default=1024, help="of each worker, that are timed")
    a = parser.parse_args()
    torch.set_num_threads(1)
    table = movielens(a.folder, LENGTH).select(["movieId", "rating", "seen"])
    train, results, kept = parts_of(table, "rows")[0], dict[str, Any](), None
    del table
    parameters = {"folder": a.folder.name, "batch": a.batch, "samples": a.samples}
    for order in ("by time", "mixed"):
        if order == "mixed":
            train = train.take(np.random.default_rng(0).permutation(len(train)))
        for size in a.batch:
            for balance in (None, "past"):
                figures = measured(train, size, balance, a.samples)
                results[f"{order}, batches of {size}, balance: {balance}"] = figures
                print(
                    order,
                    size,
                    balance,
                    {k: {n: round(v, 4) for n, v in f.items()} for k, f in figures.items()},
                )
                kept = write(Path(__file__).parent / "results", parameters, results, kept)
    print(kept)


if __name__ == "__main__":
    main()
