"""The trainer: one loop for every store, exchange and schedule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap import models
from satrap.batch import Batch, EmbeddedBatch
from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.data import prefetch
from satrap.embedding import EmbeddingPlan, Embeddings, Ticket, tables_of
from satrap.errors import ConfigError
from satrap.exchange import Exchange, LocalExchange
from satrap.metrics import BinaryMetrics
from satrap.optim import Constant, Optimizer, Schedule
from satrap.schema import Schema
from satrap.store import Admission, Shard
from satrap.threads import default_threads
from satrap.train.control import PlateauControl
from satrap.train.dense import DenseStep
from satrap.train.loss import as_matrix, binary_cross_entropy
from satrap.train.observer import Observer, Result
from satrap.train.restore import trainer_arguments
from satrap.train.run import Run
from satrap.train.schedule import lookahead, staleness_of

Rows = npt.NDArray[np.float32]
Loss = Callable[[Tensor, EmbeddedBatch], Tensor]
DenseOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

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
    updates, so that reading, lookup and update overlap with the network. One process is reproducible to
    the bit in both modes, given the same seeds (`torch.manual_seed` for the network's own parameters).

    A step whose loss or gradients are not finite is refused whole and counted; 100 in a row end the run.

    Args:
        model: the network. An attribute `embedding_dims` (feature -> width) overrides the schema's dims.
        schema: labels and features.
        embedding_optimizer: how rows learn.
        dense_optimizer: makes the `torch.optim` optimizer from the list of parameters; None: the trainer
            can evaluate and predict only.
        mode: "hybrid" (default) or "sync".
        staleness: τ of "hybrid", default 4.
        seed: of the initial rows, default 1.
        device: where the network computes, default "cpu".
        memory: byte budget of the tables, default none.
        initial_scale: rows start uniform in (-initial_scale, initial_scale), default 0.01.
        embedding_dtype: number format of the rows: "float32" (default), "bfloat16" or "float16", see `Table`.
        admission: which new ids get a row, default all.
        lr_schedule: factor on all learning rates by the number of steps done, default 1.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping.
        plateau: factor on all learning rates after each evaluation without improvement; None: never.
        patience: evaluations without improvement that end training with the best weights restored; None:
            never.
        threads: PyTorch's threads inside an operation, for this whole process; default: all cores if
            satrap was imported before torch, else all but one (see `satrap.threads`).
        loss: (logits, batch) -> scalar; default binary cross-entropy.

    Raises:
        ConfigError: impossible arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        *,
        embedding_optimizer: Optimizer,
        dense_optimizer: DenseOptimizer | None = None,
        mode: str = "hybrid",
        staleness: int = 4,
        seed: int = 1,
        device: str | torch.device = "cpu",
        memory: int | None = None,
        initial_scale: float = 0.01,
        embedding_dtype: str = "float32",
        admission: Admission | None = None,
        lr_schedule: Schedule | None = None,
        clip_norm: float | None = None,
        plateau: float | None = None,
        patience: int | None = None,
        threads: int | None = None,
        loss: Loss = binary_cross_entropy,
    ) -> None:
        self.schema, self.loss = schema, loss
        self.mode, self.staleness = mode, staleness_of(mode, staleness)
        self.embedding_optimizer, self.seed, self.initial_scale = embedding_optimizer, seed, initial_scale
        self.device = _device(device)
        torch.set_num_threads(threads or default_threads(torch.get_num_threads()))
        self.model = model.to(self.device)
        self.dense = DenseStep(model, dense_optimizer, clip_norm)
        self.control = PlateauControl(plateau, patience)
        self.embedding_dtype, self.admission = embedding_dtype, admission or Admission()
        self.lr_schedule = lr_schedule or Constant()
        dims = getattr(model, "embedding_dims", None)
        tables = tables_of(schema, embedding_optimizer, dims, initial_scale, embedding_dtype)
        self.exchange: Exchange = LocalExchange(
            Shard(tables, seed=seed, memory=memory, admission=self.admission)
        )
        self.plan = EmbeddingPlan(schema, self.exchange.groups)
        self.embeddings = Embeddings(self.plan, self.device)
        self.run = Run(schema.label_names)

    def fit(
        self,
        data: Data,
        *,
        validation: Data | None = None,
        epochs: int = 1,
        steps: int | None = None,
        observers: Sequence[Observer] = (),
    ) -> Result:
        """Train.

        Args:
            data: the training samples.
            validation: evaluated after each epoch; drives `plateau` and `patience` by its "auc".
            epochs: passes over the data, default 1.
            steps: end after this many steps, even within an epoch.
            observers: told about every step and evaluation.

        Returns:
            What happened, with the validation metrics of the weights that are kept.

        Raises:
            ConfigError: no dense optimizer, or epochs or steps below 1.
            DataError: the data cannot be read, or has no rows.
            TrainingError: 100 steps in a row were not finite.
        """
        self._check_fit(epochs, steps)
        run = self.run = Run(self.schema.label_names, epochs, observers)
        with run.watching(self.exchange, data):
            for epoch in range(epochs):
                run.begin_epoch(epoch)
                self.model.train()
                batches = itertools.islice(data.batches(epoch), None if steps is None else steps - run.steps)
                for ticket, pending in lookahead(self._tickets(batches), self._look_up, self.staleness):
                    self._step(ticket, pending)
                run.end_epoch()
                if validation is not None:
                    self._validate(validation)
                if run.done(steps, self.control):
                    break
            self.exchange.flush()
            run.restore_best(self)
        return run.finish()

    def _tickets(self, batches: Iterable[Batch]) -> Iterator[Ticket]:
        return prefetch((self.plan.ticket(batch) for batch in batches), depth=PREFETCHED_BATCHES)

    def _look_up(self, ticket: Ticket) -> tuple[Future[list[Rows]], int]:
        return self.exchange.lookup(ticket.requests, create=True), self.run.updates

    def _step(self, ticket: Ticket, pending: tuple[Future[list[Rows]], int]) -> None:
        """Train on one batch: forward, backward, dense step, row update."""
        future, updates_seen = pending
        rows = self.embeddings.rows(future.result())
        batch = self.embeddings.embed(ticket, rows)
        logits = self.model(batch)
        loss = self.loss(logits, batch)
        self.dense.backward(loss)
        lr_scale = self.control.lr_scale * self.lr_schedule.factor(self.run.steps)
        accepted = self.dense.step(loss, rows, lr_scale)
        missed = self.run.updates - updates_seen
        if accepted:
            gradients = self.embeddings.gradients(rows)
            self.exchange.update(ticket.requests, gradients, lr_scale=lr_scale)
        self.run.after_step(
            ticket, as_matrix(logits.detach(), len(self.schema.labels)), loss, accepted, missed
        )

    def _validate(self, validation: Data) -> None:
        metrics = self.evaluate(validation)
        improved, keeping = self.control.improved(metrics["auc"]), self.control.patience is not None
        if improved or not keeping:
            self.run.best = metrics
        if improved and keeping:
            self.run.keep_best(self)
        self.run.evaluated(metrics)

    def evaluate(self, data: Data) -> dict[str, float]:
        """Return the metrics of a data set; nothing is learnt or created.

        Args:
            data: samples with labels.

        Returns:
            "auc", "logloss", "ne", "calibration" and, with a group column, "gauc"; one set per label
            ("income/auc") when there are several, with "auc" their mean.

        Raises:
            DataError: the data cannot be read, has no rows or no labels.
        """
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
        return metrics.compute()

    def predict(self, data: Data) -> Iterator[Rows]:
        """Yield the probabilities of each batch, float32[size, labels], in the order of the data."""
        return (probabilities for _, probabilities in self._scored(data.batches()))

    def predict_batches(self, batches: Iterable[Batch]) -> Iterator[Rows]:
        """Yield the probabilities, float32[size, labels], of batches that the caller reads."""
        return (probabilities for _, probabilities in self._scored(batches))

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Rows]]:
        self.model.eval()
        lookup = lookahead(
            self._tickets(batches),
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
        self.exchange.flush()
        write_checkpoint(url, self._checkpoint())

    def _checkpoint(self) -> Checkpoint:
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
                "lr_schedule": self.lr_schedule.to_dict(),
                "steps": self.run.steps,
                "lr_scale": self.control.lr_scale,
            },
            model=dict(self.model.state_dict()),
            optimizer=self.dense.state_dict(),
            chunks=self.exchange.snapshot(),
        )

    @classmethod
    def load(
        cls,
        url: str,
        model: nn.Module | None = None,
        *,
        dense_optimizer: DenseOptimizer | None = None,
        **arguments: Any,
    ) -> Trainer:
        """Read what `save` wrote.

        Args:
            url: folder or fsspec URL.
            model: the network; only needed when it is not one of `satrap.models`.
            dense_optimizer: as for the constructor; None: evaluate and predict only.
            **arguments: other constructor arguments; mode, staleness, seed and embedding optimizer default
                to the saved ones.

        Raises:
            CheckpointError: missing, incomplete or damaged.
            ConfigError: the model is not the saved one.
        """
        checkpoint = read_checkpoint(url)
        trainer = cls(
            **trainer_arguments(checkpoint, model, url),
            **{"dense_optimizer": dense_optimizer, **arguments},
        )
        trainer.restore(checkpoint)
        return trainer

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over the weights, optimizer state and rows of a checkpoint."""
        self.model.load_state_dict(checkpoint.model)
        self.dense.load_state_dict(checkpoint.optimizer)
        self.control.lr_scale = checkpoint.settings["lr_scale"]
        for table, chunk in checkpoint.chunks:
            self.exchange.load(table, chunk)

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


def _device(device: str | torch.device) -> torch.device:
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {str(device)!r} was asked for, but PyTorch sees no CUDA device",
            fix="use device: cpu, or install a CUDA build of PyTorch",
        )
    return chosen
