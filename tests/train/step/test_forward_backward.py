"""Gradients of a step: the same from one pass and from several microbatches, and none without a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from satrap.embedding import NO_BATCH
from satrap.train.step.agree import StepInput
from satrap.train.step.forward_backward import ForwardBackward
from tests.support.trainers import make_trainer
from tests.train.plain import make_batches


def gradients(count: int, step: StepInput | None = None) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return logits, and the gradients of rows and weights."""
    torch.manual_seed(0)
    trainer = make_trainer()
    state = trainer.state
    ticket = state.predictor.plan.ticket(make_batches(1, size=10)[0])
    step = step or StepInput(ticket, 0.5, 20)
    lookup = trainer.exchange.lookup(step.ticket.requests, create=True)
    leaves = state.predictor.embeddings.rows(lookup.result())
    logits = ForwardBackward(state, trainer.loss, count).run(step, leaves)
    found = [None if t.grad is None else t.grad.clone() for t in (*leaves, *trainer.model.parameters())]
    trainer.close()
    return logits, found


@pytest.mark.parametrize("count", [2, 3, 16])
def test_microbatches_add_up_to_the_batch(count: int) -> None:
    (logits, whole), (others, parts) = gradients(1), gradients(count)
    torch.testing.assert_close(others, logits)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other, one)


def test_a_worker_without_a_batch_computes_nothing_if_no_other_waits_for_it() -> None:
    logits, found = gradients(2, StepInput(NO_BATCH, 0.0, 20))
    assert logits is None
    assert found
    assert all(gradient is None for gradient in found)
