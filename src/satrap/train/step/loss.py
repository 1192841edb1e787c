"""The default loss and the predictions, for each kind of label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from satrap.batch import Batch, EmbeddedBatch
from satrap.errors import TrainingError
from satrap.schema import Label


def as_tensor(logits: object, outputs: int) -> Tensor:
    """Return a model's output; `TrainingError` if it is not a tensor."""
    if not isinstance(logits, Tensor):
        raise TrainingError(
            f"the model returned a value of type {type(logits).__name__}, not a tensor",
            why="the loss needs a tensor with the outputs of each sample",
            fix=f"return float32[batch, {outputs}] from forward",
        )
    return logits


def as_mean(loss: Tensor) -> Tensor:
    """Return a loss that is a single number; any other is a `TrainingError`."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        description = (
            f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        )
        raise TrainingError(
            f"the loss returned a value of {description}, not one number",
            fix="return the mean over the samples, for example losses.mean()",
        )
    return loss


def as_matrix(logits: Tensor, size: int, outputs: int) -> Tensor:
    """Return a model's output as float32[size, outputs]; with one output it may be float32[size].

    Raises:
        TrainingError: any other shape.
    """
    matrix = logits.unsqueeze(1) if logits.ndim == 1 and outputs == 1 else logits
    if matrix.shape != (size, outputs):
        raise TrainingError(
            f"the model returned logits of shape {list(logits.shape)} for {size} samples",
            why=f"the labels of the schema need {outputs} output{'s' * (outputs != 1)} per sample",
            fix=f"return float32[batch, {outputs}] from forward; schema.outputs is {outputs}",
        )
    return matrix


class LabelLoss:
    """The mean loss over all known labels, weighted by sample weights; see `errors` for one label.

    Args:
        labels: labels of the schema.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self._labels = tuple(labels)
        self._outputs = sum(label.outputs for label in labels)
        self._binary = all(label.kind == "binary" for label in labels)

    def __call__(self, logits: Tensor, batch: EmbeddedBatch) -> Tensor:
        """Return a scalar: sum of weighted losses / sum of weights of the known labels.

        Args:
            logits: float32[size, outputs] or, for one output, float32[size].
            batch: its labels, label_mask and weights.
        """
        assert batch.labels is not None
        logits = as_matrix(logits.float(), batch.size, self._outputs)
        if batch.label_mask is None and batch.weights is None:
            if self._binary:  # one operation instead of two
                return F.binary_cross_entropy_with_logits(logits, batch.labels)
            return self._errors(logits, batch).mean()
        losses = self._errors(logits, batch)
        weights = (
            torch.ones_like(losses) if batch.weights is None else batch.weights.unsqueeze(1).expand_as(losses)
        )
        if batch.label_mask is not None:
            weights = weights * batch.label_mask
        return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)

    def _errors(self, logits: Tensor, batch: EmbeddedBatch) -> Tensor:
        """Return the loss of each sample and label, float32[size, labels]."""
        assert batch.labels is not None
        if self._binary:
            return F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        labels = batch.labels if batch.exact_labels is None else batch.exact_labels
        pieces = torch.split(logits, [label.outputs for label in self._labels], dim=1)
        columns = zip(self._labels, pieces, labels.unbind(1), strict=True)
        return torch.stack([errors(label, piece, target) for label, piece, target in columns], dim=1)


def errors(label: Label, outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each sample, float32[size].

    Binary: cross-entropy with logits; multiclass: softmax cross-entropy. Regression, with the output o and z
    = (label - mean) / std: "squared" (o - z)^2, "absolute" |o - z|, "huber" as `torch.nn.HuberLoss`;
    "poisson" exp(o) - o * label / mean, the negative log-likelihood without terms that do not depend on o.

    Args:
        label: its kind, loss and scale.
        outputs: float32[size, outputs of the label].
        target: float32[size] or float64[size], as in `Batch.labels`.
    """
    if label.kind == "multiclass":
        return F.cross_entropy(outputs, target.long(), reduction="none")
    output = outputs.squeeze(1)
    if label.kind == "binary":
        return F.binary_cross_entropy_with_logits(output, target.float(), reduction="none")
    mean, std = label.scale
    if label.loss == "poisson":
        return F.poisson_nll_loss(output, (target / mean).float(), reduction="none")
    scaled = ((target - mean) / std).float()  # scaled in the label's format: float32 would round large values
    if label.loss == "absolute":
        return F.l1_loss(output, scaled, reduction="none")
    if label.loss == "huber":
        return F.huber_loss(output, scaled, reduction="none", delta=label.delta or 1.0)
    return F.mse_loss(output, scaled, reduction="none")


def predictions(logits: Tensor, labels: Sequence[Label]) -> Tensor:
    """Return a model's predictions, float32[size, outputs], from its output of that shape.

    Probabilities for binary labels and for classes; the model's score for implicit labels; for regression
    labels the number itself, and then float64.
    """
    logits = logits.float()
    if all(label.kind == "binary" and not label.implicit for label in labels):
        return torch.sigmoid(logits)
    pieces = torch.split(logits, [label.outputs for label in labels], dim=1)
    return torch.cat([_predicted(label, piece) for label, piece in zip(labels, pieces, strict=True)], dim=1)


def prediction_names(label: Label) -> list[str]:
    """Return the names of a label's predictions, one for each output of the network.

    They are `<label>_probability` for a binary label, `<label>_probability_<class>` for each class of a
    multiclass one, `<label>_prediction` for a regression label, and `<label>_score` for an implicit one.
    """
    if label.kind == "multiclass":
        classes = range(label.outputs) if isinstance(label.classes, int) else label.classes or ()
        return [f"{label.name}_probability_{name}" for name in classes]
    if label.implicit:
        return [f"{label.name}_score"]
    return [f"{label.name}_{'prediction' if label.kind == 'regression' else 'probability'}"]


def _predicted(label: Label, outputs: Tensor) -> Tensor:
    if label.kind == "multiclass":
        return torch.softmax(outputs, dim=1)
    if label.implicit:
        return outputs
    if label.kind == "binary":
        return torch.sigmoid(outputs)
    mean, std = label.scale
    outputs = outputs.double()
    return mean * torch.exp(outputs) if label.loss == "poisson" else mean + std * outputs


def known_weight(batch: Batch) -> float:
    """Return the denominator of `LabelLoss`: the sum of weights of the known labels."""
    assert batch.labels is not None
    if batch.label_mask is None:
        each = batch.size if batch.weights is None else float(batch.weights.sum(dtype=np.float64))
        return float(each * batch.labels.shape[1])
    weights = batch.label_mask if batch.weights is None else batch.label_mask * batch.weights[:, None]
    return float(weights.sum(dtype=np.float64))
