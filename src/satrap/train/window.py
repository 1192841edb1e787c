"""A cheap AUC of the latest training samples, for the progress line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch
from satrap.metrics import BinaryMetrics

WINDOW_SAMPLES = 50_000
"""Samples per window: an AUC of so many has a standard error of about 0.003."""


class AUCWindow:
    """AUC of each full window of training samples, scored before they were learnt from; mean over labels."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._metrics = BinaryMetrics(labels, exact_limit=0, bins=4096)
        self._samples = 0
        self.value = math.nan

    def add(self, batch: Batch, logits: Tensor) -> float:
        """Take a batch and its logits float32[size, labels]; return the AUC of the last full window."""
        assert batch.labels is not None
        probabilities = torch.sigmoid(logits.float()).cpu().numpy()
        self._metrics.update(batch.labels, probabilities, mask=batch.label_mask, weights=batch.weights)
        self._samples += batch.size
        if self._samples >= WINDOW_SAMPLES:
            self.value = self._metrics.compute()["auc"]
            self._metrics.reset()
            self._samples = 0
        return self.value

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as plain arrays, for a checkpoint."""
        counts = np.array([self._samples, self.value], np.float64)
        return {"counts": counts, **{f"metrics/{k}": v for k, v in self._metrics.state().items()}}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace everything by what `state` returned."""
        self._samples, self.value = int(state["counts"][0]), float(state["counts"][1])
        self._metrics.restore({k.removeprefix("metrics/"): v for k, v in state.items() if k != "counts"})
