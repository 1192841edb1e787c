"""The default loss: binary cross-entropy over all known labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from satrap.batch import Batch, EmbeddedBatch
from satrap.errors import TrainingError


def as_matrix(logits: Tensor, labels: int) -> Tensor:
    """Return logits as float32[size, labels]; a model with one label may return float32[size].

    Raises:
        TrainingError: any other shape.
    """
    if logits.ndim == 1 and labels == 1:
        return logits.unsqueeze(1)
    if logits.ndim != 2 or logits.shape[1] != labels:
        raise TrainingError(
            f"the model returned logits of shape {list(logits.shape)}",
            why=f"the schema has {labels} labels",
            fix=f"return float32[batch, {labels}] from forward",
        )
    return logits


def binary_cross_entropy(logits: Tensor, batch: EmbeddedBatch) -> Tensor:
    """Return the mean binary cross-entropy with logits over known labels, weighted by sample weights.

    Args:
        logits: float32[size, labels] or, for one label, float32[size].
        batch: its labels, label_mask and weights.

    Returns:
        A scalar: sum of weighted losses / sum of weights of the known labels.
    """
    assert batch.labels is not None
    logits = as_matrix(logits.float(), batch.labels.shape[1])
    if batch.label_mask is None and batch.weights is None:
        return F.binary_cross_entropy_with_logits(logits, batch.labels)
    weights = (
        torch.ones_like(logits) if batch.weights is None else batch.weights.unsqueeze(1).expand_as(logits)
    )
    if batch.label_mask is not None:
        weights = weights * batch.label_mask
    losses = F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)


def known_weight(batch: Batch) -> float:
    """Return the denominator of `binary_cross_entropy`: the sum of weights of the known labels."""
    assert batch.labels is not None
    if batch.label_mask is None:
        each = batch.size if batch.weights is None else float(batch.weights.sum(dtype=np.float64))
        return float(each * batch.labels.shape[1])
    known = batch.label_mask if batch.weights is None else batch.label_mask * batch.weights[:, None]
    return float(known.sum(dtype=np.float64))
