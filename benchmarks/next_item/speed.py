"""Processor time of a training step of `sasrec`, and of the same network in plain PyTorch.

`python -m benchmarks.next_item.speed [--items 10000 500000] [--shortest 2]`. Batches of 64 histories of 2 to
50 events, every event a target, 512 drawn negatives, Adam. Plain PyTorch pads the histories and has one
`nn.Embedding`: with `sparse=True` and `SparseAdam`, or dense with Adam. All take the same batches, in turns,
with one thread. The time of satrap is that of the whole process less the turns of the others: it includes
reading and drawing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import satrap
from benchmarks.next_item.ways import DIM, HISTORIES, WAYS
from benchmarks.record import write
from satrap.train import Observer, Progress, Ranking, TrainingOptions

LENGTH, BATCH, NEGATIVES, DROPOUT, TURN = 50, 64, 512, 0.2, 5
Whole = npt.NDArray[np.int64]


class Plain(nn.Module):
    """SASRec over padded histories, as PyTorch's documentation would write it."""

    def __init__(self, items: int, *, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(items, DIM, sparse=sparse)
        nn.init.uniform_(self.rows.weight, -0.05, 0.05)
        self.positions = nn.Parameter(torch.zeros(LENGTH, DIM))
        layer = nn.TransformerEncoderLayer(
            DIM, 2, 4 * DIM, DROPOUT, "gelu", batch_first=True, norm_first=True
        )
        layer.self_attn.dropout = layer.dropout.p = 0.0  # as in satrap's blocks
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.dropout = nn.Dropout(DROPOUT)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, history: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
        """Return the loss of int64[batch, 50] histories, padded with -1 at the end, and their targets."""
        real = history >= 0
        after = real.sum(1, keepdim=True) - 1 - torch.arange(LENGTH)
        x = self.rows(history.clamp(min=0)) * DIM**0.5 + self.positions[after.clamp(min=0)]
        queries = self.blocks(self.dropout(x), mask=self.mask, is_causal=True)[real]
        own, drawn = self.rows(targets[real]), self.rows(negatives)
        scores = (queries @ drawn.T).masked_fill(targets[real][:, None] == negatives, -torch.inf)
        positive = (queries * own).sum(1, keepdim=True)
        return F.cross_entropy(torch.cat((positive, scores), 1), torch.zeros(len(own), dtype=torch.int64))


def stepper(items: int, kind: str, events: list[Whole]) -> Callable[[int], None]:
    """Return a function that takes a step of plain PyTorch with the batch of that number."""
    model = Plain(items, sparse=kind == "sparse")
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)]
    if kind == "sparse":
        others = [each for name, each in model.named_parameters() if not name.startswith("rows")]
        optimizers = [
            torch.optim.SparseAdam(list(model.rows.parameters()), lr=0.005),
            torch.optim.Adam(others, lr=1e-3),
        ]
    random = np.random.default_rng(1)

    def step(number: int) -> None:
        first = number * BATCH % len(events)
        padded = np.full((2, BATCH, LENGTH), -1)
        for row, seen in enumerate(events[first : first + BATCH]):
            padded[0, row, : len(seen) - 1], padded[1, row, : len(seen) - 1] = seen[:-1], seen[1:]
        history, targets = torch.from_numpy(padded)
        loss = model(history, targets, torch.from_numpy(random.integers(items, size=NEGATIVES)))
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()

    return step


class Turns(Observer):
    """Lets the others take the steps that satrap has taken, and counts the processor time of all."""

    def __init__(self, others: Mapping[str, Callable[[int], None]], warm: int) -> None:
        self.others, self.warm, self.steps = others, warm, 0
        self.seconds = dict.fromkeys(["satrap", *others], 0.0)
        self.begun = 0.0

    def step(self, progress: Progress) -> None:
        """Take turns after every few steps; the first ones do not count."""
        self.steps += 1
        if self.steps % TURN:
            return
        for name, other in self.others.items():
            start = time.thread_time()
            for number in range(self.steps - TURN, self.steps):
                other(number)
            self.seconds[name] += time.thread_time() - start
        if self.steps == self.warm:
            self.begun, self.seconds = time.process_time(), dict.fromkeys(self.seconds, 0.0)
        own = time.process_time() - self.begun - sum(self.seconds[name] for name in self.others)
        self.seconds["satrap"] = own


def measured(items: int, shortest: int, steps: int, warm: int) -> dict[str, Any]:
    """Return the samples per second of processor time of each side; a sample is a history."""
    random = np.random.default_rng(0)
    lengths = random.integers(shortest + 1, LENGTH + 2, BATCH * (steps + warm))
    popular = (items * random.random(int(lengths.sum())) ** 3).astype(np.int64)
    events = np.split(popular, np.cumsum(lengths)[:-1])
    rows = {"history": [each[:-1] for each in events], "movie": [each[-1] for each in events]}
    features = {name: feature for name, feature in HISTORIES.items() if name != "rated"}
    schema = satrap.Schema([satrap.Label(name="seen", implicit=True)], features)
    way = WAYS["sasrec"]
    trainer = satrap.Trainer(
        satrap.models.create("sasrec", schema, every_event=True),
        schema,
        embedding_optimizer=way.rows,
        mode="sync",
        loss=satrap.losses.SampledSoftmax(in_batch=False, negatives=NEGATIVES),
        training=TrainingOptions(ranking=Ranking((10,), among="items")),
    )
    turns = Turns({kind: stepper(items, kind, events) for kind in ("sparse", "dense")}, warm)
    trainer.fit(satrap.data.read(pd.DataFrame(rows), schema, batch_size=BATCH), observers=[turns])
    trainer.close()
    return {name: round(BATCH * steps / seconds, 1) for name, seconds in turns.seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", nargs="+", type=int, default=[10_000, 500_000])
    parser.add_argument("--shortest", type=int, default=2, help="fewest events of a history")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm", type=int, default=10)
    a = parser.parse_args()
    torch.set_num_threads(1)
    results, kept = dict[str, Any](), None
    for items in a.items:
        results[str(items)] = measured(items, a.shortest, a.steps, a.warm)
        print(f"{items:,} items, samples per second of processor time: {results[str(items)]}", flush=True)
        kept = write(Path(__file__).parent / "results", vars(a), results, kept)
    print(kept)


if __name__ == "__main__":
    main()
