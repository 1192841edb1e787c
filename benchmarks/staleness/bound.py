"""Gradients under SGD with stale rows, compared with the bound, by staleness, skew of ids and batch size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.record import write
from benchmarks.staleness.hot_row import trainer_of_rows
from satrap.batch import Batch, EmbeddedBatch, Jagged

IDS, STEPS, RATE = 2_000, 3_000, 4.0
SKEWS, BATCH_SIZES, STALENESS = (0.0, 0.8, 1.2), (16, 256), (0, 1, 4, 16, 64)
LIPSCHITZ = 0.25
"""Lipschitz constant of the gradient of a mean of logistic losses, each of one row."""
WINDOW = 100
"""Steps whose mean of squared gradients counts as one value of E||g||^2."""


class Problem:
    """Each sample has one id and a label that is 1 with the id's probability; an id's row is its logit.

    The loss f(w) = sum of p_i (log(1 + exp w_i) - q_i w_i) and its gradient are known, and so is its minimum.
    """

    def __init__(self, skew: float, batch_size: int) -> None:
        draw = np.random.default_rng(1)
        p = np.arange(1, IDS + 1, dtype=np.float64) ** -skew
        self.p, self.q, self.batch_size = p / p.sum(), draw.uniform(0.1, 0.9, IDS), batch_size
        self.ids = draw.choice(IDS, (STEPS, batch_size), p=self.p)
        self.labels = (draw.random(self.ids.shape) < self.q[self.ids]).astype(np.float32)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        for ids, labels in zip(self.ids, self.labels, strict=True):
            yield Batch(self.batch_size, {"id": Jagged(ids.astype(np.uint64))}, labels=labels[:, None])

    def num_rows(self) -> int:
        return STEPS * self.batch_size

    def excess_at_zero(self) -> float:
        """Return f(0) - min f."""
        least = -(self.q * np.log(self.q) + (1 - self.q) * np.log(1 - self.q))
        return float(np.log(2) - self.p @ least)

    def hottest(self) -> float:
        """Return the largest probability that an id is in a batch."""
        return float(1 - (1 - self.p.max()) ** self.batch_size)


def run(problem: Problem, staleness: int) -> dict[str, Any]:
    """Train; return the mean squared gradient where the steps computed it, its bound, and the last losses."""
    full, single, losses = [], [], []
    steps = iter(range(STEPS))

    def loss(outputs: Tensor, batch: EmbeddedBatch) -> Tensor:
        assert batch.labels is not None
        value = torch.nn.functional.binary_cross_entropy_with_logits(outputs, batch.labels)
        ids = problem.ids[next(steps)]
        logits = outputs.detach().numpy()[:, 0].astype(np.float64)
        probability = 1 / (1 + np.exp(-logits))
        # Samples have ids with probability p_i, so this mean estimates the sum of (p_i (sigma_i - q_i))^2.
        full.append(np.mean(problem.p[ids] * (probability - problem.q[ids]) ** 2))
        of_rows = np.bincount(ids, probability - batch.labels.numpy()[:, 0], IDS) / problem.batch_size
        single.append(of_rows @ of_rows)
        losses.append(np.mean(np.logaddexp(0, logits) - problem.q[ids] * logits))
        return value

    trainer = trainer_of_rows(RATE, staleness, 0.0, loss)
    try:
        trainer.fit(problem)
    finally:
        trainer.close()
    g2 = float(np.max(np.mean(np.reshape(single, (-1, WINDOW)), axis=1)))
    price = (LIPSCHITZ * RATE * staleness) ** 2 * problem.hottest() * g2
    bound = 2 * problem.excess_at_zero() / (RATE * STEPS) + LIPSCHITZ * RATE * g2 + price
    return {
        "squared_gradient": float(np.mean(full)),
        "bound": bound,
        "price_in_bound": price,
        "last_loss": float(np.mean(losses[-STEPS // 5 :])),
    }


def main() -> None:
    """Print and record the table."""
    figures = []
    for skew in SKEWS:
        for batch_size in BATCH_SIZES:
            problem = Problem(skew, batch_size)
            fresh: dict[str, Any] = {}
            for staleness in STALENESS:
                measured = run(problem, staleness)
                fresh = fresh or measured
                about = {"skew": skew, "batch_size": batch_size, "alpha": problem.hottest()}
                about |= {"staleness": staleness, **measured}
                about["times_fresh"] = measured["squared_gradient"] / fresh["squared_gradient"]
                about["loss_more_than_fresh"] = measured["last_loss"] - fresh["last_loss"]
                figures.append(about)
                print({k: float(f"{v:.3g}") for k, v in about.items()}, flush=True)
    parameters = {"ids": IDS, "steps": STEPS, "rate": RATE, "window": WINDOW}
    print(write(Path(__file__).parent / "results", parameters, {"bound": figures}))


if __name__ == "__main__":
    main()
