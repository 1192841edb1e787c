"""A training of three seconds on random rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch

from satrap.batch import Batch, Jagged
from satrap.errors import SatrapError
from satrap.models import DNN
from satrap.optim import RowWiseAdagrad
from satrap.schema import Categorical, Schema
from satrap.tools.doctor.finding import Finding
from satrap.train import Trainer

SECONDS = 3.0
ROWS, IDS, FEATURES = 1024, 10_000, 8


class _Made:
    """Batches of random ids for some seconds, at least one."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._random = seconds, np.random.default_rng(1)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Yield the batches."""
        end = time.monotonic() + self._seconds
        yield self._batch()
        while time.monotonic() < end:
            yield self._batch()

    def _batch(self) -> Batch:
        ids = self._random.integers(1, IDS, (FEATURES, ROWS)).astype(np.uint64)
        labels = (ids[:1].T % 2 == 0).astype(np.float32)
        return Batch(ROWS, {f"f{i}": Jagged(ids[i]) for i in range(FEATURES)}, labels=labels)


def trial(seconds: float | None = None) -> Iterator[Finding]:
    """Train a small network, for 3 seconds by default, not counting the compilation of its kernels."""
    schema = Schema(["label"], {f"f{i}": Categorical(dim=16) for i in range(FEATURES)})
    try:
        with closing(
            Trainer(
                DNN(schema, hidden=[64]),
                schema,
                embedding_optimizer=RowWiseAdagrad(lr=0.05),
                dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
            )
        ) as trainer:
            trainer.fit(_Made(0))
            result = trainer.fit(_Made(SECONDS if seconds is None else seconds))
    except (SatrapError, OSError, RuntimeError) as error:
        yield Finding(
            "training", "error", f"{type(error).__name__}: {error}".splitlines()[0], "report this error"
        )
        return
    summary = f"{result.steps} steps in {result.seconds:.1f} s: {result.samples_per_second:,.0f} samples/s"
    if result.refused:
        yield Finding(
            "training", "error", f"{summary}, but {result.refused} were not finite", "report this error"
        )
    else:
        yield Finding("training", "ok", f"{summary} with a small network")
