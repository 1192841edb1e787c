"""Loss and gradients of a step on one worker, microbatch by microbatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from satrap.batch import Batch, EmbeddedBatch
from satrap.embedding import NO_BATCH, BatchLookup
from satrap.train.state.training_state import TrainingState
from satrap.train.step.agree import StepInput
from satrap.train.step.dummy_batch import blank_rows, buffers_kept
from satrap.train.step.loss import LabelLoss, as_matrix, as_mean, known_weight
from satrap.train.step.pair_loss import ComparingLoss
from satrap.train.step.split_batch import MicroBatches, parts_of

Loss = Callable[[Tensor, EmbeddedBatch], Tensor]


class ForwardBackward:
    """Runs the forward and backward passes of a step.

    Args:
        state: has the network, its backend, and the embeddings.
        loss: (logits, batch) -> scalar, a mean over the samples; or a loss of pairs.
        microbatches: number of microbatches per batch.

    Attributes:
        weight: returns the denominator of the mean loss of a batch.
    """

    def __init__(self, state: TrainingState, loss: Loss | ComparingLoss, microbatches: int) -> None:
        self._state, self._loss, self._microbatches = state, loss, microbatches
        self._predictor, self._dense = state.predictor, state.dense
        self.weight = known_weight if isinstance(loss, LabelLoss) else _size
        self._comparing = loss if isinstance(loss, ComparingLoss) else None
        compares_all = self._comparing is not None and self._comparing.collective
        self._waited_for = state.dense.collective or compares_all

    def with_candidates(self, batch: Batch, epoch: int) -> Batch:
        """Return a batch with the items that it is compared with, if the loss compares items."""
        return batch if self._comparing is None else self._comparing.with_candidates(batch, epoch)

    def run(self, step: StepInput, leaves: Sequence[Tensor]) -> Tensor | None:
        """Compute all gradients of a step.

        Args:
            step: this worker's part of the step.
            leaves: its rows, as `Embeddings.rows` returns them.

        Returns:
            The logits, float32[size, outputs]; None without a batch, or from a loss of pairs.
        """
        phases, logits = self._state.run.stages, list[Tensor]()
        parts = parts_of(step.ticket, self._microbatches, self.weight)
        if not self._waited_for:  # no other worker waits for a pass of this one
            parts = [(part, share) for part, share in parts if part is not NO_BATCH]
        for number, (part, of_batch) in enumerate(parts, 1):
            share = of_batch if self._comparing else step.share * of_batch  # a loss of pairs knows all pairs
            with phases.timed("forward"), self._state.workers.watched("forward pass"):
                loss, part_logits = self._forward(part, leaves, share)
                logits += [] if part is NO_BATCH or part_logits is None else [part_logits]
            with phases.timed("dense"):
                self._dense.backward(loss, share, last=number == len(parts))
        return torch.cat(logits) if len(logits) > 1 else next(iter(logits), None)

    def _forward(
        self, part: BatchLookup, leaves: Sequence[Tensor], share: float
    ) -> tuple[Tensor, Tensor | None]:
        """Return the mean loss and the logits of a microbatch."""
        if self._comparing is not None:
            return self._compared(self._comparing, part, leaves), None
        if part is NO_BATCH:  # other workers wait for this worker's part of their collectives
            with buffers_kept(self._state.model):
                return self._scored(*blank_rows(self._predictor.plan, self._predictor.embeddings), share)
        return self._scored(part, leaves, share)

    def _scored(self, part: BatchLookup, leaves: Sequence[Tensor], share: float) -> tuple[Tensor, Tensor]:
        pipeline, embed = self._dense.pipeline, self._predictor.embeddings.embed
        if pipeline is None:
            batch = embed(part, leaves)
            logits = self._predictor.logits(batch)
            loss = self._mean_loss(logits, batch)
        else:  # also computes gradients
            parts = MicroBatches(part, leaves, embed, pipeline.count, self.weight)
            logits, loss = pipeline.run(parts, self._mean_loss, share)
        return loss, as_matrix(logits.detach(), part.batch.size, self._predictor.schema.outputs)

    def _compared(self, loss: ComparingLoss, part: BatchLookup, leaves: Sequence[Tensor]) -> Tensor:
        if part is NO_BATCH:
            return loss.absent(self._predictor.embeddings.device)
        batch = self._predictor.embeddings.embed(part, leaves)
        return loss(self._predictor.output(batch), batch)

    def _mean_loss(self, logits: Tensor, batch: EmbeddedBatch) -> Tensor:
        return as_mean(self._loss(logits, batch))


def _size(batch: Batch) -> float:
    return float(batch.size)
