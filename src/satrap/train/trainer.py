"""The trainer: one loop for every store, exchange and schedule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap import models
from satrap.batch import Batch, EmbeddedBatch
from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.checkpoint.manifest import understood
from satrap.data import prefetch
from satrap.data.prefetch import Prefetcher
from satrap.dense import DENSE_TABLE, DenseStep, MakeOptimizer, RemoteStep, Workers
from satrap.embedding import Ticket, embeddings_of, tables_of
from satrap.embedding.workers import PooledExchange
from satrap.errors import CheckpointError, ConfigError, SatrapError
from satrap.exchange import Exchange, LocalExchange, Request
from satrap.memory import keep_freed_memory
from satrap.metrics import BinaryMetrics
from satrap.optim import Constant, Optimizer, Schedule
from satrap.schema import Schema, Table
from satrap.store import Admission, Eviction, Shard, Tier
from satrap.threads import default_threads
from satrap.train.control import PlateauControl
from satrap.train.load import reading
from satrap.train.loss import as_matrix, binary_cross_entropy, known_weight
from satrap.train.merge import merged
from satrap.train.observer import Observer, Result
from satrap.train.restore import trainer_arguments
from satrap.train.run import Run
from satrap.train.saving import Checkpointing, Saver
from satrap.train.schedule import lookahead, staleness_of
from satrap.train.turns import Turn, turns

Rows = npt.NDArray[np.float32]
Loss = Callable[[Tensor, EmbeddedBatch], Tensor]
Connect = Callable[[Sequence[Table]], Exchange]

PREFETCHED_BATCHES = 4
"""Batches read and de-duplicated ahead by the reader thread; more only costs memory."""

EVALUATION_LOOKAHEAD = 2
"""Lookups ahead in evaluation, where nothing is updated and order does not matter."""


class Data(Protocol):
    """What the trainer reads: `satrap.data.Dataset`, or anything with this method.

    `num_rows()` and `progress(position, epoch)` of a `Dataset` are used, where they exist, to tell how long a
    run will take.
    """

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Iterate over one epoch, from a position."""


class Trainer:
    """Trains a PyTorch model whose embeddings live in a satrap store.

    ```python
    trainer = satrap.Trainer(
        model, schema,
        embedding_optimizer=satrap.optim.RowWiseAdagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        mode="hybrid", staleness=4,
    )
    result = trainer.fit(train, validation=validation, epochs=2)
    trainer.evaluate(test)
    ```

    A model is any `nn.Module` whose `forward` takes an `EmbeddedBatch` and returns logits float32[size,
    labels]. Embeddings are no parameters of it: they are rows of the store, created on first use and
    updated by `embedding_optimizer` once per distinct id and step. `mode` says how far lookups run ahead:
    in "sync" each lookup sees every earlier update; in "hybrid" it misses exactly the latest `staleness`
    updates, so that reading, lookup and update overlap with the network. One worker is reproducible to the
    bit in these modes, given the same seeds (`torch.manual_seed` for the network's own parameters). "async",
    a baseline, keeps the network's weights in the store as well: workers push and pull, and never wait.

    A step whose loss or gradients are not finite is refused whole and counted; 100 in a row end the run, and
    so does its end if every step was refused.

    Args:
        model: the network. An attribute `embedding_dims` (feature -> width) overrides the schema's dims.
        schema: labels and features.
        embedding_optimizer: how rows learn.
        dense_optimizer: makes the `torch.optim` optimizer from the list of parameters; None: the trainer
            can evaluate and predict only.
        mode: "hybrid" (default), "sync" or "async".
        staleness: τ of "hybrid" and "async", default 4.
        seed: of the initial rows, default 1.
        device: where the network computes, default "cpu".
        memory: byte budget of the tables, default none.
        initial_scale: rows start uniform in (-initial_scale, initial_scale), default 0.01.
        embedding_dtype: number format of the rows: "float32" (default), "bfloat16" or "float16", see `Table`.
        admission: which new ids get a row, default all.
        eviction: which rows go once `memory` is used up; None: none, and training then ends with an error.
        tier: where those rows are kept to come back, see `satrap.store.Tier`; None: nowhere.
        lr_schedule: factor on all learning rates by the number of steps done, default 1.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping. What it
            is exactly with several workers says `satrap.dense.DenseStep`.
        plateau: factor on all learning rates after each evaluation without improvement; None: never.
        patience: evaluations without improvement that end training with the best weights restored; None:
            never.
        threads: PyTorch's threads inside an operation, for this whole process; default: all cores if
            satrap was imported before torch, else all but one (see `satrap.threads`).
        loss: (logits, batch) -> scalar, a mean over the samples; default binary cross-entropy.
        exchange: given the tables, returns where their rows are; default a store in this process.
        workers: the processes that train together, this one among them; default this one alone. Then `fit`,
            `evaluate`, `save` and `load` are called by all of them, each with its own share of the data, and
            `exchange` returns an exchange with shard servers.

    Raises:
        ConfigError: impossible arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        *,
        embedding_optimizer: Optimizer,
        dense_optimizer: MakeOptimizer | None = None,
        mode: str = "hybrid",
        staleness: int = 4,
        seed: int = 1,
        device: str | torch.device = "cpu",
        memory: int | None = None,
        initial_scale: float = 0.01,
        embedding_dtype: str = "float32",
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        tier: Tier | None = None,
        lr_schedule: Schedule | None = None,
        clip_norm: float | None = None,
        plateau: float | None = None,
        patience: int | None = None,
        threads: int | None = None,
        loss: Loss = binary_cross_entropy,
        exchange: Connect | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.schema, self.loss = schema, loss
        self.workers = workers or Workers()
        self.mode, self.staleness = mode, staleness_of(mode, staleness)
        self.embedding_optimizer, self.seed, self.initial_scale = embedding_optimizer, seed, initial_scale
        self.device = _device(device)
        keep_freed_memory()
        torch.set_num_threads(threads or default_threads(torch.get_num_threads()))
        self.model = model.to(self.device)
        self.control = PlateauControl(plateau, patience)
        self.embedding_dtype, self.admission = embedding_dtype, admission or Admission()
        self.memory, self.eviction = memory, eviction
        self.lr_schedule = lr_schedule or Constant()
        dims = getattr(model, "embedding_dims", None)
        tables = tables_of(schema, embedding_optimizer, dims, initial_scale, embedding_dtype)
        self.dense = (
            RemoteStep(model, dense_optimizer, clip_norm, {table.dim for table in tables})
            if mode == "async"
            else DenseStep(model, dense_optimizer, clip_norm, self.workers)
        )
        tables += self.dense.tables
        bounds: Any = {"memory": memory, "admission": self.admission, "eviction": eviction, "tier": tier}
        self.exchange: Exchange = (
            exchange(tables) if exchange else LocalExchange(Shard(tables, seed=seed, **bounds))
        )
        self.dense.attach(self.exchange.groups)
        groups = [group for group in self.exchange.groups if DENSE_TABLE not in group.tables]
        self.plan, self.embeddings = embeddings_of(self.exchange, schema, groups, self.device)
        if clip_norm is not None:
            _check_clipping(self.exchange)
        self.run = Run(schema.label_names)
        self.stopping = self.fitting = self._seeded = False
        self._saver = Saver(self, None)

    def fit(
        self,
        data: Data,
        *,
        validation: Data | None = None,
        epochs: int = 1,
        steps: int | None = None,
        observers: Sequence[Observer] = (),
        checkpoint: Checkpointing | None = None,
        resume: bool = False,
    ) -> Result:
        """Train.

        Args:
            data: the training samples.
            validation: evaluated after each epoch; drives `plateau` and `patience` by its "auc".
            epochs: passes over the data, default 1.
            steps: end after this many steps, even within an epoch.
            observers: told about every step and evaluation.
            checkpoint: where and how often snapshots are written; None: never.
            resume: go on from the newest snapshot there, as if the run had never ended. The trainer must be
                new, and made as the one before.

        Returns:
            What happened, with the validation metrics of the weights that are kept.

        Raises:
            ConfigError: no dense optimizer, epochs or steps below 1, or nothing to resume.
            CheckpointError: the snapshot is damaged.
            DataError: the data cannot be read, or has no rows.
            TrainingError: 100 steps in a row were not finite, or all of a shorter run: nothing was learnt.
        """
        self._check_fit(epochs, steps)
        run = self.run = Run(self.schema.label_names, epochs, observers, self.workers)
        saver = self._saver = Saver(self, checkpoint)
        run.snapshots = saver.series
        self._begin(resume)
        with run.watching(self.exchange, data), saver:
            while saver.epoch < epochs and (saver.amid_pass or not run.done(steps, self.control)):
                run.begin_epoch(saver.epoch)
                self.model.train()
                batches = itertools.islice(
                    saver.batches(data), None if steps is None else max(steps - run.steps, 0)
                )
                turns = self._turns(batches)
                waited = reading(turns, run.stages, run.progress)
                for turn, pending in lookahead(waited, self._look_up, self.staleness, saver.ahead):
                    saver.stepped(turn, stop=self._step(turn, pending))
                saver.pass_trained()
                run.end_epoch()
                if validation is not None:
                    self._validate(validation)
                saver.epoch_ended()
            self._settle("end of training")
            if self.mode == "async":
                run.total_up()
            saver.finish()
            run.restore_best(self)
        return run.finish()

    def _begin(self, resume: bool) -> None:
        """Give all workers the same network: that of the newest snapshot, or of rank 0."""
        if resume:
            self._saver.resume()
        else:
            self.workers.broadcast(list(self.model.state_dict().values()))
        self.workers.solo("dense weights", self._seed)

    def _seed(self) -> None:
        if self.dense.tables and not self._seeded:
            self.dense.seed(self.exchange)
            self._seeded = True

    def _settle(self, stage: str) -> None:
        """Wait until all workers are here and all their updates applied; then they have equal networks."""
        self.exchange.flush()
        self.workers.meet(stage)
        self.dense.refresh(self.exchange)
        self.workers.broadcast(list(self.model.buffers()))

    def request_stop(self) -> None:
        """End `fit` after the step, or amid an evaluation, on all workers; safe in a signal handler.

        With `checkpoint`, a snapshot is saved and `fit` returns; without, it raises KeyboardInterrupt after
        the step.
        """
        self.stopping = True

    def _tickets(self, batches: Iterable[Batch]) -> Iterator[Ticket]:
        for batch in batches:
            ticket = self.plan.ticket(batch)
            self.exchange.prefetch(ticket.requests)
            yield ticket

    def _turns(self, batches: Iterable[Batch]) -> Prefetcher[Turn]:
        weight = known_weight if self.loss is binary_cross_entropy else _size
        workers = Workers() if self.mode == "async" else self.workers
        return prefetch(turns(self._tickets(batches), workers, weight), depth=PREFETCHED_BATCHES)

    def _look_up(self, turn: Turn) -> Pending | None:
        if turn.ticket is None:
            if self.mode == "sync":
                self.exchange.lookup([], create=True)  # other workers' lookups may wait for it
            return None
        requests = [*turn.ticket.requests, *self.dense.requests]
        if (replayed := self._saver.replayed(requests)) is not None:
            return Pending(requests, *replayed)
        return Pending(requests, self.exchange.lookup(requests, create=True), self.run.updates)

    def _step(self, turn: Turn, pending: Pending | None) -> bool:
        """Train on one batch: forward, backward, dense step, row update; return whether to stop."""
        loss = logits = None
        leaves: list[Tensor] = []
        timed = self.run.stages.timed
        if turn.ticket is not None and pending is not None:
            rows = self.run.wait(pending.future)
            own = len(turn.ticket.requests)
            with timed("forward"):
                self.dense.pull(rows[own:])
                leaves = self.embeddings.rows(rows[:own])
                batch = self.embeddings.embed(turn.ticket, leaves)
                logits = self.model(batch)
                loss = self.loss(logits, batch)
                logits = as_matrix(logits.detach(), len(self.schema.labels))
        lr_scale = self.control.lr_scale * self.lr_schedule.factor(self.run.steps)
        with timed("dense"):
            finite = partial(self.embeddings.finite, leaves)
            stepped = self.dense.step(
                loss, leaves, lr_scale, share=turn.share, stop=self.stopping, finite=finite
            )
        missed = None if pending is None else self.run.updates - pending.updates_seen
        with timed("push"):
            if stepped.accepted and pending is not None:
                gradients = [*self.embeddings.gradients(leaves), *self.dense.push()]
                self.exchange.update(pending.requests, gradients, lr_scale=lr_scale, finite=True)
            else:
                self.exchange.update([], [], lr_scale=lr_scale)  # in sync mode, shards wait for every worker
        self.run.after_step(turn, logits, stepped, missed)
        return stepped.stop

    def _validate(self, validation: Data) -> None:
        found = self._evaluate(self._saver.stoppable(validation))
        self._saver.evaluated()
        metrics = merged(found, self.workers)
        improved, keeping = self.control.improved(metrics["auc"]), self.control.patience is not None
        if improved or not keeping:
            self.run.best = metrics
        if improved and keeping:
            self._saver.keep_best()
        self.run.evaluated(metrics)

    def evaluate(self, data: Data) -> dict[str, float]:
        """Return the metrics of a data set; nothing is learnt or created.

        Args:
            data: samples with labels; of several workers, each gives its share, and gets the metrics of all.

        Returns:
            "auc", "logloss", "ne", "calibration" and, with a group column, "gauc"; one set per label
            ("income/auc") when there are several, with "auc" their mean.

        Raises:
            DataError: the data cannot be read, has no rows or no labels.
        """
        return merged(self._evaluate(data), self.workers)

    def _evaluate(self, data: Data) -> BinaryMetrics:
        """Return the metrics of what this worker reads."""
        self._settle("evaluation")
        metrics = BinaryMetrics(self.schema.label_names, grouped=self.schema.group is not None)
        for batch, probabilities in self._scored(data.batches()):
            assert batch.labels is not None
            metrics.update(
                batch.labels,
                probabilities,
                mask=batch.label_mask,
                weights=batch.weights,
                groups=batch.groups,
            )
        return metrics

    def predict(self, data: Data) -> Iterator[Rows]:
        """Yield the probabilities of each batch, float32[size, labels], in the order of the data."""
        return (probabilities for _, probabilities in self._scored(data.batches()))

    def predict_batches(self, batches: Iterable[Batch]) -> Iterator[Rows]:
        """Yield the probabilities, float32[size, labels], of batches that the caller reads."""
        return (probabilities for _, probabilities in self._scored(batches))

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Rows]]:
        self.model.eval()
        lookup = lookahead(
            prefetch(self._tickets(batches), depth=PREFETCHED_BATCHES),
            lambda ticket: self.exchange.lookup(ticket.requests, create=False),
            EVALUATION_LOOKAHEAD,
        )
        for ticket, future in lookup:
            with torch.no_grad():
                batch = self.embeddings.embed(ticket, self.embeddings.rows(future.result()))
                logits = as_matrix(self.model(batch), len(self.schema.labels))
                yield ticket.batch, torch.sigmoid(logits.float()).cpu().numpy()

    def save(self, url: str) -> None:
        """Write model, optimizer, tables and counters to a folder or fsspec URL, as one snapshot.

        An older snapshot there stays readable until the new one is complete.

        Raises:
            CheckpointError: it cannot be written.
        """
        _, error = self.save_in_one_of([url])
        if error is not None:
            raise error

    def save_in_one_of(self, places: Iterable[str]) -> tuple[str, CheckpointError | None]:
        """Write what `save` writes to the first of some places that can be written to.

        Args:
            places: folders or fsspec URLs; of several workers, rank 0 reads them, none more than it needs.

        Returns:
            (the place that has it, empty if there is none; why the first one has not). Other ranks than 0
            know no reason.
        """
        kept, errors = "", list[CheckpointError]()

        def write() -> None:
            nonlocal kept
            for place in places:
                try:
                    write_checkpoint(place, self._checkpoint())
                except CheckpointError as error:
                    errors.append(error)
                else:
                    kept = place
                    return

        self._settle("before saving")
        self.workers.solo("saving", write)
        return self.workers.share(kept.encode()).decode(), next(iter(errors), None)

    def _checkpoint(self) -> Checkpoint:
        checkpoint = self.describe()
        checkpoint.rows = self.exchange.snapshot().write
        return checkpoint

    def describe(self) -> Checkpoint:
        """Return the trained state without rows; its tensors are those in use."""
        return Checkpoint(
            settings={
                "schema": self.schema.to_dict(),
                "model": models.describe(self.model),
                "embedding_optimizer": self.embedding_optimizer.to_dict(),
                "mode": self.mode,
                "staleness": self.staleness,
                "seed": self.seed,
                "initial_scale": self.initial_scale,
                "embedding_dtype": self.embedding_dtype,
                "admission": self.admission.to_dict(),
                "eviction": self.eviction and {**self.eviction.to_dict(), "memory": self.memory},
                "lr_schedule": self.lr_schedule.to_dict(),
                "steps": self.run.steps,
                "lr_scale": self.control.lr_scale,
            },
            model=dict(self.model.state_dict()),
            optimizer=self.dense.state_dict(),
            chunks=(),
        )

    @classmethod
    def load(
        cls,
        url: str,
        model: nn.Module | None = None,
        *,
        dense_optimizer: MakeOptimizer | None = None,
        **arguments: Any,
    ) -> Trainer:
        """Read what `save` wrote.

        Args:
            url: folder or fsspec URL.
            model: the network; only needed when it is not one of `satrap.models`.
            dense_optimizer: as for the constructor; None: evaluate and predict only.
            **arguments: other constructor arguments; mode, staleness, seed, admission and embedding optimizer
                default to the saved ones, memory, eviction and tier to none.

        Raises:
            CheckpointError: missing, incomplete or damaged.
            ConfigError: the model is not the saved one.
        """
        checkpoint = read_checkpoint(url)
        trainer = cls(
            **trainer_arguments(checkpoint, model, url),
            **{"dense_optimizer": dense_optimizer, **arguments},
        )
        try:
            trainer.restore(checkpoint)
        except SatrapError:
            trainer.close()
            raise
        return trainer

    def restore(self, checkpoint: Checkpoint, place: str = "", *, follow: bool = False) -> None:
        """Take over the weights, optimizer state and rows of a checkpoint.

        Args:
            checkpoint: what to take over; rank 0 loads its rows.
            place: URL of the checkpoint, from which whoever holds rows loads its own in place of rank 0,
                with all it needs to go on exactly.
            follow: see `Exchange.read`.
        """
        with understood(place):
            self.model.load_state_dict(checkpoint.model)
            self.dense.load_state_dict(checkpoint.optimizer)
            self.control.lr_scale = float(checkpoint.settings["lr_scale"])
        if place:
            self.workers.solo("loading rows", lambda: self.exchange.read(place, follow=follow, exact=True))
            self._seeded = bool(self.dense.tables)
        else:
            self.workers.solo("loading rows", lambda: self._load_rows(checkpoint))

    def _load_rows(self, checkpoint: Checkpoint) -> None:
        for table, chunk in checkpoint.chunks:
            if table != DENSE_TABLE or self.dense.tables:
                self.exchange.load(table, chunk)
                self._seeded = self._seeded or table == DENSE_TABLE

    def statistics(self) -> Mapping[str, Any]:
        """Return the counters of the store, see `satrap.store.Shard.statistics`."""
        return self.exchange.statistics()

    def close(self) -> None:
        """Release the store and its thread."""
        self.exchange.close()

    def _check_fit(self, epochs: int, steps: int | None) -> None:
        if not self.dense.trainable:
            raise ConfigError(
                "this trainer has no dense_optimizer", fix="pass dense_optimizer=lambda parameters: ..."
            )
        if epochs < 1 or (steps is not None and steps < 1):
            raise ConfigError(f"epochs and steps must be >= 1, got epochs={epochs}, steps={steps}")


@dataclass(frozen=True, slots=True)
class Pending:
    """A lookup that is under way, and how many updates had been issued before it."""

    requests: list[Request]
    future: Future[list[Rows]]
    updates_seen: int


def _size(batch: Batch) -> float:
    return float(batch.size)


def _check_clipping(exchange: Exchange) -> None:
    if isinstance(exchange, PooledExchange):
        raise ConfigError(
            "clip_norm does not go with embedding workers",
            why="the norm counts gradients of rows, and these never reach the worker",
            fix="train without clip_norm or without embedding workers",
        )


def _device(device: str | torch.device) -> torch.device:
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {str(device)!r} was asked for, but PyTorch sees no CUDA device",
            fix="use device: cpu, or install a CUDA build of PyTorch",
        )
    return chosen
