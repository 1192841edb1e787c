"""The default loss against scikit-learn's, one label at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from satrap.batch import Batch, EmbeddedBatch
from satrap.errors import TrainingError
from satrap.train.loss import as_matrix, binary_cross_entropy, known_weight

SIZE, LABELS = 40, 3


def drawn(labels: int = LABELS) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels, mask and weights; each label is known and both values occur."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (SIZE, labels)).astype(np.float32)
    mask = rng.random((SIZE, labels)) < 0.7
    return rng.normal(0, 2, (SIZE, labels)).astype(np.float32), truth, mask, rng.uniform(0, 3, SIZE)


def loss_of(logits: np.ndarray, **parts: Any) -> float:
    tensors = {
        name: torch.from_numpy(np.asarray(value)) for name, value in parts.items() if value is not None
    }
    batch = EmbeddedBatch(size=SIZE, embeddings={}, numeric=torch.zeros(SIZE, 0), **tensors)
    return float(binary_cross_entropy(torch.from_numpy(logits), batch))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_weighted_mean_over_the_known_labels(masked: bool, weighted: bool) -> None:
    logits, truth, mask, weights = drawn()
    found = loss_of(
        logits,
        labels=truth,
        label_mask=mask if masked else None,
        weights=weights.astype(np.float32) if weighted else None,
    )
    losses, total = 0.0, 0.0
    for label in range(LABELS):
        rows = mask[:, label] if masked else np.ones(SIZE, bool)
        own = weights[rows] if weighted else np.ones(rows.sum())
        probabilities = 1 / (1 + np.exp(-logits[rows, label].astype(np.float64)))
        losses += log_loss(truth[rows, label], probabilities, sample_weight=own) * own.sum()
        total += own.sum()
    assert found == pytest.approx(losses / total, rel=1e-5)
    batch = Batch(
        SIZE,
        {},
        labels=truth,
        label_mask=mask if masked else None,
        weights=weights.astype(np.float32) if weighted else None,
    )
    assert known_weight(batch) == pytest.approx(total, rel=1e-6)


def test_no_known_label_is_no_loss() -> None:
    logits, truth, mask, _ = drawn()
    assert loss_of(logits, labels=truth, label_mask=np.zeros_like(mask)) == 0.0


def test_logits_of_one_label_may_be_a_vector() -> None:
    logits, truth, _, _ = drawn(labels=1)
    assert loss_of(logits[:, 0], labels=truth) == loss_of(logits, labels=truth)


def test_logits_of_16_bits_are_computed_in_32() -> None:
    _, truth, _, _ = drawn(labels=1)
    halves = np.full((SIZE, 1), 12.0, np.float16)  # in float16, 1 - sigmoid(12) is no normal number
    assert loss_of(halves, labels=truth) == pytest.approx(loss_of(halves.astype(np.float32), labels=truth))


@pytest.mark.parametrize(("shape", "labels"), [((SIZE,), 2), ((SIZE, 2), 3), ((SIZE, 1, 1), 1)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...], labels: int) -> None:
    with pytest.raises(TrainingError, match="returned logits of shape") as caught:
        as_matrix(torch.zeros(shape), labels)
    assert f"the schema has {labels} labels" in str(caught.value)
