"""The training loop, for every store, exchange, schedule and number of workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from satrap.batch import Batch
from satrap.data import prefetch
from satrap.data.prefetch import Prefetcher
from satrap.embedding import BatchLookup
from satrap.errors import SatrapError
from satrap.exchange import Lookup
from satrap.exchange.protocol import StepVerdict
from satrap.exchange.wrappers.replay import with_replays
from satrap.metrics import criterion
from satrap.optim import Schedule as LearningRates
from satrap.train.predictor import PREFETCHED_BATCHES, BatchSource, TrainingData
from satrap.train.progress.shard_load import reading
from satrap.train.resharding.moves import Mover
from satrap.train.schedule import lookahead
from satrap.train.schema_checks import check_batch, check_labels
from satrap.train.state.across_workers import merged
from satrap.train.state.run_cursor import InFlightLookup
from satrap.train.state.snapshots import Snapshots
from satrap.train.state.training_state import TrainingState
from satrap.train.step.agree import StepInput, agreed_steps, first, stretches
from satrap.train.step.forward_backward import ForwardBackward


class Loop:
    """Trains a state on data: looks rows up, computes gradients, takes the network's step, updates the rows.

    It connects three threads of a worker. The reading thread makes the requests of the next batches, and
    counts their samples together with the reading threads of the other workers. The exchange serves lookups
    and updates in its own threads, in the order issued. The calling thread does everything else. It waits for
    the rows of a lookup, then, in the network's step, for the other workers. All workers take the same steps:
    an idle worker, which has no batch, issues the same calls.

    Args:
        state: the network, its rows and the position in the run; a resumed one may have lookups to replay.
        compute: computes the gradients of a step.
        learning_rates: schedule of the learning rates.
        snapshots: notified of each step, epoch and evaluation; may end the training.
        mover: notified of each step.
    """

    def __init__(
        self,
        state: TrainingState,
        compute: ForwardBackward,
        learning_rates: LearningRates,
        snapshots: Snapshots,
        mover: Mover,
    ) -> None:
        self._state, self._compute, self._learning_rates = state, compute, learning_rates
        self._snapshots, self._mover = snapshots, mover
        self._predictor, self._schedule = state.predictor, state.schedule
        self._run, self._position, self._exchange = state.run, state.position, state.exchange
        replays = self._position.replays
        self._source = with_replays(self._exchange, replays) if replays else self._exchange
        self._open = deque[Lookup[Any]]()  # lookups without an update so far
        self._ending = threading.Event()

    def run(self, data: TrainingData, validation: BatchSource | None, epochs: int, steps: int | None) -> None:
        """Train until the epochs or steps are done, or patience is exhausted; see `Trainer.fit`."""
        run, position, snapshots = self._run, self._position, self._snapshots
        self._state.dense.forget()
        while position.epoch < epochs and (position.amid_pass or not run.done(steps, self._state.control)):
            run.begin_epoch(position.epoch)
            self._state.model.train()
            snapshots.pass_begins()
            batches = self._steps(data, None if steps is None else max(steps - run.steps, 0))
            with self._released():
                self._train(batches)
            snapshots.pass_trained()
            run.end_epoch()
            if validation is not None:
                self._validate(validation)
            if snapshots.keep_place(position.reading.of_stream):
                return
            position.epoch_ended()

    def _steps(self, data: TrainingData, most: int | None) -> Prefetcher[StepInput | None]:
        """Return the rest of the epoch, at most `most` batches, read and de-duplicated ahead in a thread."""
        batches = first(most, self._position.reading.batches(data, self._position.epoch))
        epoch, partners = self._position.epoch, self._state.dense.partners
        tickets = (self._ticket(batch, epoch) for batch in batches)
        steps = agreed_steps(tickets, partners, self._compute.weight, self._ending)
        return prefetch(steps, depth=PREFETCHED_BATCHES)

    def _ticket(self, batch: Batch | None, epoch: int) -> BatchLookup | None:
        if batch is None:
            return None
        check_batch(batch, self._predictor.schema)
        check_labels(batch, self._predictor.schema)
        [ticket] = self._predictor.tickets([self._compute.with_candidates(batch, epoch)])
        return ticket

    def _train(self, batches: Prefetcher[StepInput | None]) -> None:
        """Train on the rest of an epoch."""
        run, position, snapshots = self._run, self._position, self._snapshots
        waited = reading(batches, run.stages, run.progress)
        # A snapshot saves the lookups in flight, which the cursor sees in this queue. Lookups that see all
        # updates are not saved: a resumed run simply issues them again.
        ahead = position.ahead if self._schedule.staleness else None
        for number, steps in enumerate(stretches(waited)):
            # Between two stretches no worker has a batch, and no lookup is in flight.
            if number:
                self._idle(batches)
            for step, lookup in lookahead(steps, self._look_up, self._schedule.ahead, ahead, run.steps):
                # The lookups of the next `ahead` batches are in flight now, and overlap with this step.
                stop = self._step(step, lookup)
                position.trained(step)
                if stop:  # all workers stop after the same step, so they release the same lookups
                    self._release()
                    self._end_reading(batches)
                snapshots.stepped(stop=stop)
                self._mover.stepped()

    def _look_up(self, step: StepInput) -> InFlightLookup:
        requests, seen = [*step.ticket.requests, *self._state.dense.requests], self._run.updates
        if self._position.replays and not step.idle:
            distinct = [*self._predictor.plan.distinct(step.ticket), *self._state.dense.requests]
            seen = self._position.replayed(distinct, self._run.steps + 1)
        lookup = self._source.lookup(requests, create=True)
        self._open.append(lookup)
        return InFlightLookup(lookup, seen)

    def _step(self, step: StepInput, pending: InFlightLookup) -> bool:
        """Train on one batch; return whether to stop."""
        state, run, embeddings = self._state, self._run, self._predictor.embeddings

        # The lookup was issued up to `ahead` steps ago. Usually its rows are here.
        rows, count = run.wait(pending.lookup.rows), len(step.ticket.requests)
        with run.stages.timed("forward"):
            state.dense.pull(rows[count:])  # weights of the network that are rows
            leaves = embeddings.rows(rows[:count])
        predicted = run.predicted(self._compute.run(step, leaves))

        # From here on, this worker's gradients of rows are final, but no worker knows yet whether the others
        # accept the step. An exchange that needs to know it waits for the verdict: that sums the gradients of
        # the network and takes its step. Any other sends gradients of rows now, concurrently with this sum.
        lr_scale = state.control.lr_scale * self._learning_rates.factor(run.steps)
        with run.stages.timed("dense"):
            taken = state.dense.step(leaves, lr_scale, stop=state.stopping)
        with run.stages.timed("push"):
            gradients = [*embeddings.gradients(leaves), *state.dense.push()]
            verdict = StepVerdict(taken.own, run.stages.counted("dense", lambda: taken.result().accepted))
            self._open.popleft()
            self._exchange.apply(pending.lookup, gradients, lr_scale=lr_scale, verdict=verdict)
        with run.stages.timed("dense"):
            stepped = taken.result()

        missed = min(run.updates - pending.updates_seen, self._schedule.staleness)
        run.after_step(step, predicted, stepped, missed)
        return stepped.stop

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
        """End lookups that no step will use, where lookups of a later `fit` would wait behind them."""
        # In `hybrid` over shard servers they stay open: a snapshot may still read their rows.
        if not self._schedule.staleness or self._exchange.collective:
            while self._open:
                self._exchange.apply(self._open.popleft(), (), lr_scale=1.0)

    def _idle(self, batches: Prefetcher[StepInput | None]) -> None:
        """Do idle work while no worker has a batch; every lookup has been trained on."""
        try:
            self._snapshots.idle()
        except KeyboardInterrupt:
            self._end_reading(batches)
            raise

    def _end_reading(self, batches: Prefetcher[StepInput | None]) -> None:
        """End the reading thread together with the other workers': all of them count samples together."""
        if self._state.dense.partners.data.size > 1:
            self._ending.set()
            for _ in batches:
                pass

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
