"""The training loop, for every store, exchange, schedule and number of workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch, EmbeddedBatch
from satrap.data import prefetch
from satrap.data.prefetch import Prefetcher
from satrap.embedding import BatchLookup
from satrap.errors import SatrapError
from satrap.exchange import Lookup
from satrap.exchange.protocol import AtomicStep
from satrap.metrics import criterion
from satrap.optim import Schedule as LearningRates
from satrap.train.predictor import PREFETCHED_BATCHES, BatchSource, TrainingData
from satrap.train.progress.shard_load import reading
from satrap.train.resharding.moves import Mover
from satrap.train.schedule import Sync, lookahead
from satrap.train.schema_checks import check_batch, check_labels
from satrap.train.state.across_workers import merged
from satrap.train.state.run_cursor import InFlightLookup
from satrap.train.state.snapshots import Snapshots
from satrap.train.state.training_state import TrainingState
from satrap.train.step.agree import StepInput, agreed_steps, first, stretches
from satrap.train.step.dummy_batch import blank_batch, buffers_kept
from satrap.train.step.loss import LabelLoss, as_matrix, as_mean, known_weight
from satrap.train.step.microbatches import MicroBatches
from satrap.train.step.split_batch import parts_of

Loss = Callable[[Tensor, EmbeddedBatch], Tensor]
Array = npt.NDArray[np.float32]


class Loop:
    """Trains a state on data.

    `snapshots` is notified of each step, epoch and evaluation, and may end the training; `mover` is notified
    of each step.
    """

    def __init__(
        self,
        state: TrainingState,
        loss: Loss,
        learning_rates: LearningRates,
        snapshots: Snapshots,
        mover: Mover,
        microbatches: int,
    ) -> None:
        self._state, self._loss, self._learning_rates = state, loss, learning_rates
        self._weight = known_weight if isinstance(loss, LabelLoss) else _size
        self._microbatches = microbatches
        self._snapshots, self._predictor, self._schedule = snapshots, state.predictor, state.schedule
        self._mover = mover
        self._run, self._position, self._exchange = state.run, state.position, state.exchange
        self._unanimous = self._exchange if isinstance(self._exchange, AtomicStep) else None
        self._ending = threading.Event()
        self._unanswered = 0  # lookups without an update so far

    def run(self, data: TrainingData, validation: BatchSource | None, epochs: int, steps: int | None) -> None:
        """Train until the epochs or steps are done, or patience is exhausted; see `Trainer.fit`."""
        run, position, snapshots = self._run, self._position, self._snapshots
        self._state.dense.forget()
        while position.epoch < epochs and (position.amid_pass or not run.done(steps, self._state.control)):
            run.begin_epoch(position.epoch)
            self._state.model.train()
            snapshots.pass_begins()
            batches = self._turns(data, None if steps is None else max(steps - run.steps, 0))
            waited = reading(batches, run.stages, run.progress)
            # After a resume, lookups that see all updates are simply issued again, without saved rows.
            ahead = position.ahead if self._schedule.staleness else None
            with self._released():
                for number, there in enumerate(stretches(waited)):
                    # Between two stretches no worker has a batch, and no lookup is in flight.
                    if number:
                        self._idle(batches)
                    for turn, pending in lookahead(
                        there, self._look_up, self._schedule.ahead, ahead, run.steps
                    ):
                        # The lookups of the next `ahead` batches are in flight now, and overlap with this
                        # step.
                        stop = self._step(turn, pending)
                        position.trained(turn)
                        if stop:  # all workers stop after the same step, so they release the same lookups
                            self._release()
                            self._end_reading(batches)
                        snapshots.stepped(stop=stop)
                        self._mover.stepped()
            snapshots.pass_trained()
            run.end_epoch()
            if validation is not None:
                self._validate(validation)
            if position.reading.of_stream:
                snapshots.keep_place()
                return
            position.epoch_ended()

    @contextmanager
    def _released(self) -> Iterator[None]:
        """Release lookups if an error, or Ctrl-C, ends the epoch of a single worker."""
        try:
            yield
        except BaseException:
            if self._state.workers.size == 1:  # other workers would have to release them as well
                with suppress(SatrapError):
                    self._release()
            raise

    def _release(self) -> None:
        """End lookups that no step will use; lookups of a later `fit` would wait behind them forever."""
        if isinstance(self._schedule, Sync) or self._exchange.collective:
            for _ in range(self._unanswered):
                self._update(None, [])

    def _idle(self, turns: Prefetcher[StepInput | None]) -> None:
        """Do idle work while no worker has a batch; every lookup has been trained on."""
        try:
            self._snapshots.idle()
        except KeyboardInterrupt:
            self._end_reading(turns)
            raise

    def _end_reading(self, turns: Prefetcher[StepInput | None]) -> None:
        """End the reading thread together with the other workers': all of them count samples together."""
        if self._state.dense.partners.data.size > 1:
            self._ending.set()
            for _ in turns:
                pass

    def _turns(self, data: TrainingData, most: int | None) -> Prefetcher[StepInput | None]:
        """Return the rest of the epoch, at most `most` batches, read and de-duplicated ahead in a thread."""
        read = first(most, self._position.reading.batches(data, self._position.epoch))
        tickets, partners = map(self._ticket, read), self._state.dense.partners
        turns_of = agreed_steps(tickets, partners, self._weight, self._ending)
        return prefetch(turns_of, depth=PREFETCHED_BATCHES)

    def _ticket(self, batch: Batch | None) -> BatchLookup | None:
        if batch is None:
            return None
        check_batch(batch, self._predictor.schema)
        check_labels(batch, self._predictor.schema)
        [ticket] = self._predictor.tickets([batch])
        return ticket

    def _look_up(self, turn: StepInput) -> InFlightLookup | None:
        if turn.ticket is None:
            self._schedule.look_up_nothing(self._exchange)
            self._unanswered += 1
            return None
        dense, known, seen = self._state.dense.requests, None, self._run.updates
        if self._position.replays:
            distinct = [*self._predictor.plan.distinct(turn.ticket), *dense]
            known, seen = self._position.replayed(distinct, self._run.steps + 1)
        requests = [*turn.ticket.requests, *dense]
        lookup = self._exchange.lookup(requests, create=True, known=known)
        self._unanswered += 1  # only after the call succeeded: an update without lookup would end another one
        return InFlightLookup(lookup, seen)

    def _step(self, turn: StepInput, pending: InFlightLookup | None) -> bool:
        """Train on one batch: forward, backward, dense step, row update; return whether to stop."""
        state, run, embeddings = self._state, self._run, self._predictor.embeddings
        leaves = list[Tensor]()
        if turn.ticket is not None and pending is not None:
            rows = run.wait(pending.lookup.rows)
            count = len(turn.ticket.requests)
            with run.stages.timed("forward"):
                state.dense.pull(rows[count:])
                leaves = embeddings.rows(rows[:count])
        loss, share, logits = self._forward(turn, leaves)
        lr_scale = state.control.lr_scale * self._learning_rates.factor(run.steps)
        push, finite = partial(self._push, pending, leaves, lr_scale), partial(embeddings.finite, leaves)
        # A collective exchange carries the verdict in the update itself. So the update can be sent as soon as
        # the row gradients are final, while the dense gradients are still being summed. Other exchanges get
        # it only after the dense step, when the common verdict is known.
        early = self._unanimous is not None
        with run.stages.timed("dense"):
            stepped = state.dense.step(
                loss,
                leaves,
                lr_scale,
                share=share,
                stop=state.stopping,
                finite=finite,
                ready=push if early else None,
            )
        missed = (
            None if pending is None else min(run.updates - pending.updates_seen, self._schedule.staleness)
        )
        if not early:
            with run.stages.timed("push"):
                push(stepped.accepted)
        run.after_step(turn, logits, stepped, missed)
        return stepped.stop

    def _forward(self, turn: StepInput, leaves: list[Tensor]) -> tuple[Tensor | None, float, Tensor | None]:
        """Return the loss of the last microbatch, its share in the mean, and all logits.

        The backward passes of all other microbatches have run.
        """
        state, stages = self._state, self._run.stages
        parts = parts_of(turn.ticket, self._microbatches, self._weight)
        if not state.dense.collective:
            parts = [part for part in parts if part[0] is not None]
        loss, share, logits = None, turn.share, list[Tensor]()
        for ticket, of_batch in parts:
            if loss is not None:
                with stages.timed("dense"):
                    state.dense.accumulate(loss, share)
            share = turn.share * of_batch
            with stages.timed("forward"), state.workers.watched("forward pass"):
                if ticket is None:
                    loss = self._blank_loss()
                else:
                    loss, part_logits = self._loss_of(ticket, leaves, share)
                    logits.append(part_logits)
        return loss, share, torch.cat(logits) if len(logits) > 1 else next(iter(logits), None)

    def _loss_of(self, ticket: BatchLookup, leaves: list[Tensor], share: float) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch or microbatch, and its logits, float32[size, outputs]."""
        batch = self._predictor.embeddings.embed(ticket, leaves)
        logits, loss = self._passed(batch, share)
        return loss, as_matrix(logits.detach(), batch.size, self._predictor.schema.outputs)

    def _passed(self, batch: EmbeddedBatch, share: float) -> tuple[Tensor, Tensor]:
        """Return logits and mean loss of a batch; a pipeline also computes gradients."""
        pipeline = self._state.dense.pipeline
        if pipeline is None:
            logits = self._predictor.logits(batch)
            return logits, self._mean_loss(logits, batch)
        parts = MicroBatches(batch, pipeline.count)
        return pipeline.run(parts, self._mean_loss, parts.weights(self._weight), share)

    def _mean_loss(self, logits: Tensor, batch: EmbeddedBatch) -> Tensor:
        return as_mean(self._loss(logits, batch))

    def _blank_loss(self) -> Tensor:
        """Return the loss of a dummy batch: the other workers wait for this worker's forward pass."""
        batch = blank_batch(self._predictor.plan, self._predictor.embeddings)
        with buffers_kept(self._state.model):
            return self._passed(batch, 0.0)[1]

    def _push(
        self, pending: InFlightLookup | None, leaves: list[Tensor], lr_scale: float, accepted: bool
    ) -> None:
        """Issue the update of a step; `accepted`: by this worker, and if the exchange requires it, by all."""
        if not accepted and self._unanimous is not None:
            self._unanswered -= 1
            self._unanimous.refuse()
        elif accepted and pending is not None:
            gradients = [*self._predictor.embeddings.gradients(leaves), *self._state.dense.push()]
            self._update(pending.lookup, gradients, lr_scale)
        else:  # in sync mode, shards wait for an update from every worker
            self._update(None, [], lr_scale)

    def _update(self, lookup: Lookup[Any] | None, gradients: Sequence[Array], lr_scale: float = 1.0) -> None:
        self._unanswered -= 1
        self._exchange.update(lookup, gradients, lr_scale=lr_scale, finite=True)

    def _validate(self, validation: BatchSource) -> None:
        state = self._state
        state.settle("evaluation")
        measured = self._predictor.measure(self._snapshots.stoppable(validation.batches()))
        self._snapshots.evaluated()
        metrics = merged(measured, state.workers)
        value = state.control.value(metrics, criterion(self._predictor.schema.labels))
        improved, keeping = state.control.improved(value), state.control.patience is not None
        if improved or not keeping:
            self._run.best = metrics
        if improved and keeping:
            self._snapshots.wait_for_snapshot()
            self._snapshots.warn(state.keep_best())
        self._run.evaluated(metrics)


def _size(batch: Batch) -> float:
    return float(batch.size)
