"""The default loss and predictions against scikit-learn and PyTorch, one label at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from satrap.batch import Batch, EmbeddedBatch
from satrap.errors import TrainingError
from satrap.schema import Label
from satrap.train.step.loss import LabelLoss, as_matrix, known_weight, predictions

SIZE, LABELS = 40, 3


def drawn(labels: int = LABELS) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels, mask and weights; each label is known and both values occur."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (SIZE, labels)).astype(np.float32)
    mask = rng.random((SIZE, labels)) < 0.7
    return rng.normal(0, 2, (SIZE, labels)).astype(np.float32), truth, mask, rng.uniform(0, 3, SIZE)


def loss_of(logits: np.ndarray, of: list[Label] | None = None, **parts: Any) -> float:
    """The loss for labels `of`, by default binary ones."""
    tensors = {
        name: torch.from_numpy(np.asarray(value)) for name, value in parts.items() if value is not None
    }
    batch = EmbeddedBatch(size=SIZE, embeddings={}, numeric=torch.zeros(SIZE, 0), **tensors)
    count = parts["labels"].shape[1]
    labels = of or [Label(name=f"y{i}") for i in range(count)]
    return float(LabelLoss(labels)(torch.from_numpy(logits), batch))


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


@pytest.mark.parametrize(
    ("shape", "outputs"),
    [((SIZE,), 2), ((SIZE, 2), 3), ((SIZE, 1, 1), 1), ((SIZE - 1, 1), 1), ((1,), 1), ((1, 2), 2)],
)
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...], outputs: int) -> None:
    with pytest.raises(TrainingError, match="returned logits of shape") as caught:
        as_matrix(torch.zeros(shape), SIZE, outputs)
    assert f"need {outputs} output" in str(caught.value)


def test_one_prediction_is_not_taken_for_all_samples() -> None:
    """Broadcasting would make a loss of it that is finite and wrong."""
    label = of_kind("regression", mean=1.0, std=2.0)
    batch = EmbeddedBatch(size=SIZE, embeddings={}, numeric=torch.zeros(SIZE, 0), labels=torch.zeros(SIZE, 1))
    with pytest.raises(TrainingError, match=rf"shape \[1, 1\] for {SIZE} samples"):
        LabelLoss([label])(torch.zeros(1, 1), batch)


def of_kind(kind: Any, **arguments: Any) -> Label:
    return Label(name="z", kind=kind, **arguments)


def sample(label: Label) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Outputs, labels, and each sample's loss by `torch.nn` in float64."""
    rng = np.random.default_rng(1)
    outputs = rng.normal(0, 1, (SIZE, label.outputs)).astype(np.float32)
    o = torch.from_numpy(outputs.astype(np.float64))
    if label.kind == "multiclass":
        truth = rng.integers(0, label.outputs, SIZE)
        return outputs, truth, torch.nn.CrossEntropyLoss(reduction="none")(o, torch.from_numpy(truth))
    if label.loss == "poisson":
        truth, loss = rng.poisson(4, SIZE), torch.nn.PoissonNLLLoss(reduction="none")
        return outputs, truth, loss(o[:, 0], torch.from_numpy(truth / 4))
    truth = rng.normal(100, 20, SIZE)
    kinds = {"absolute": torch.nn.L1Loss, "huber": torch.nn.HuberLoss, "squared": torch.nn.MSELoss}
    scaled = torch.from_numpy((truth.astype(np.float32).astype(np.float64) - 100) / 20)
    return outputs, truth, kinds[label.loss or "squared"](reduction="none")(o[:, 0], scaled)


KINDS = [
    of_kind("regression", mean=100.0, std=20.0),
    of_kind("regression", mean=100.0, std=20.0, loss="absolute"),
    of_kind("regression", mean=100.0, std=20.0, loss="huber"),
    of_kind("regression", mean=4.0, loss="poisson"),
    of_kind("multiclass", classes=5),
]


@pytest.mark.parametrize("label", KINDS, ids=lambda label: label.loss or label.kind)
def test_a_label_of_another_kind_has_the_loss_of_pytorch(label: Label) -> None:
    outputs, truth, each = sample(label)
    found = loss_of(outputs, [label], labels=truth.astype(np.float32)[:, None])
    assert found == pytest.approx(float(each.mean()), rel=1e-5)


def test_labels_of_several_kinds_share_the_loss_by_their_known_weights() -> None:
    binary, truth, mask, weights = drawn(labels=1)
    label_mask, losses, total = [mask[:, 0]], 0.0, 0.0
    outputs, labels = [binary], [truth[:, 0]]
    rng = np.random.default_rng(2)
    for label in KINDS:
        one, own, each = sample(label)
        known = rng.random(SIZE) < 0.5
        outputs, labels, label_mask = [*outputs, one], [*labels, own], [*label_mask, known]
        losses += float((each.numpy() * weights * known).sum())
        total += float((weights * known).sum())
    probabilities = 1 / (1 + np.exp(-binary[mask[:, 0], 0].astype(np.float64)))
    own = weights[mask[:, 0]]
    losses += log_loss(truth[mask[:, 0], 0], probabilities, sample_weight=own) * own.sum()
    found = loss_of(
        np.concatenate(outputs, 1),
        [Label(name="y"), *KINDS],
        labels=np.stack(labels, 1).astype(np.float32),
        label_mask=np.stack(label_mask, 1),
        weights=weights.astype(np.float32),
    )
    assert found == pytest.approx(losses / (total + own.sum()), rel=1e-5)


def test_predictions_are_probabilities_and_numbers_in_the_units_of_their_labels() -> None:
    outputs = np.random.default_rng(0).normal(0, 1, (SIZE, 10)).astype(np.float32)
    labels = [Label(name="y"), *KINDS]
    found = predictions(torch.from_numpy(outputs), labels).numpy()
    o = outputs.astype(np.float64)
    np.testing.assert_allclose(found[:, 0], 1 / (1 + np.exp(-o[:, 0])), rtol=1e-6)
    np.testing.assert_allclose(found[:, 1:4], 100 + 20 * o[:, 1:4], rtol=1e-6)
    np.testing.assert_allclose(found[:, 4], 4 * np.exp(o[:, 4]), rtol=1e-6)
    exponents = np.exp(o[:, 5:])
    np.testing.assert_allclose(found[:, 5:], exponents / exponents.sum(1, keepdims=True), rtol=1e-5)
