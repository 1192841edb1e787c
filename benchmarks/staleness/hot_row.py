"""The largest learning rate at which a row converges, by staleness and frequency of its id."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from benchmarks.record import write
from satrap.batch import Batch, EmbeddedBatch, Jagged
from satrap.errors import TrainingError
from satrap.train import TrainingOptions

STEPS = 1_500
HOT, OTHER = 1, 2
Loss = Callable[[Tensor, EmbeddedBatch], Tensor]


class Samples:
    """Batches of one sample, whose id is the hot one with a probability."""

    def __init__(self, frequency: float) -> None:
        drawn = np.random.default_rng(1).random(STEPS) < frequency
        self.ids = np.where(drawn, HOT, OTHER).astype(np.uint64)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        for i in range(STEPS):
            ids = Jagged(self.ids[i : i + 1], None)
            yield Batch(1, {"id": ids}, labels=np.array([[ids.values[0] == HOT]], np.float32))

    def num_rows(self) -> int:
        return STEPS


class Row(nn.Module):
    """The row itself, so that squared error has curvature 1."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        return batch["id"] + 0 * self.unused


def trainer_of_rows(rate: float, staleness: int, scale: float, loss: Loss) -> satrap.Trainer:
    """Return a trainer of rows only, by SGD, with full staleness from the first step."""
    return satrap.Trainer(
        Row(),
        satrap.Schema(labels=["y"], features={"id": satrap.Categorical(dim=1)}),
        embedding_optimizer=satrap.optim.SGD(lr=rate),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        mode="hybrid",
        staleness=staleness,
        store=satrap.store.StoreConfig(initial_scale=scale),
        training=TrainingOptions(staleness_warmup=0),
        loss=loss,
    )


def remains(rate: float, staleness: int, frequency: float) -> float:
    """Return the loss on the hot row at the end, divided by the loss at the beginning."""
    hot: list[float] = []

    def loss(outputs: Tensor, batch: EmbeddedBatch) -> Tensor:
        value = (outputs**2).sum() / 2
        assert batch.labels is not None
        if batch.labels.item():
            hot.append(float(value.detach()))
        return value

    trainer = trainer_of_rows(rate, staleness, 0.5, loss)
    try:
        trainer.fit(Samples(frequency))
    except TrainingError:  # a hundred consecutive steps whose loss is not finite
        return math.inf
    finally:
        trainer.close()
    return max(hot[-50:]) / hot[0]


def limit(staleness: float) -> float:
    """Return the largest stable rate of w(t + 1) = w(t) - rate * w(t - staleness).

    2 sin(pi / (2 (2 staleness + 1))): S. A. Levin and R. M. May, "A note on difference-delay equations",
    Theoretical Population Biology 9 (1976).
    """
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


def largest(staleness: int, frequency: float, steps: int = 6) -> float:
    """Return the largest rate with which the loss falls, by bisection between 0 and 2."""
    low, high = 0.0, 2.0
    for _ in range(steps):
        middle = (low + high) / 2
        if remains(middle, staleness, frequency) < 1:
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    """Print and record the table."""
    figures = []
    for frequency in (1.0, 0.25, 0.05):
        for staleness in (0, 1, 4, 16):
            rate, theory = largest(staleness, frequency), limit(frequency * staleness)
            about = {"frequency": frequency, "staleness": staleness}
            figures.append(about | {"largest": rate, "theory": theory})
            print(f"{about} largest rate {rate:.3f}, theory {theory:.3f}", flush=True)
    print(write(Path(__file__).parent / "results", {"steps": STEPS}, {"hot_row": figures}))


if __name__ == "__main__":
    main()
