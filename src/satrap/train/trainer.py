"""The trainer: one loop for every store, exchange and schedule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import nn

from satrap import compatibility, models
from satrap.checkpoint import read_checkpoint
from satrap.checkpoint.feed import check_resumable
from satrap.checkpoint.series import newest
from satrap.compatibility import IMPLICIT, PAIRS, POOLS
from satrap.data.python_batches import as_batches
from satrap.dense import DataParallelBackend, DenseBackend, MakeOptimizer, Workers
from satrap.dense.compute.compiled import compile_blocks
from satrap.dense.memory.activation_checkpoint import checkpoint_activations
from satrap.dense.memory.initial_weights import initial_weights
from satrap.dense.memory.weight_offload import stay_off, weights_are_off
from satrap.embedding import tables_of
from satrap.errors import ConfigError, SatrapError
from satrap.exchange import Exchange, ExchangeStatistics, LocalExchange
from satrap.exchange.lookahead import with_lookahead
from satrap.losses import PairLoss
from satrap.optim import DENSE_LR, EMBEDDING_DEFAULT, Optimizer
from satrap.runtime import user_code
from satrap.runtime.arguments import checked
from satrap.runtime.formatting import described
from satrap.schema import Schema, Table
from satrap.settings.saving import Checkpointing
from satrap.settings.training import TrainingOptions
from satrap.settings.warm_start import WarmStart
from satrap.store import Admission, Eviction, StoreConfig, Tier
from satrap.store.gpu.device import rows_device
from satrap.store.shard import open_store
from satrap.train.loop import Loop
from satrap.train.predictor import BatchSource, Predictor, Rows, TrainingData, metrics_of, prepare
from satrap.train.progress.fit_stats import FitStats
from satrap.train.progress.observer import Observer, Result
from satrap.train.progress.plateau_control import PlateauControl
from satrap.train.progress.progress_line import ProgressLine
from satrap.train.resharding.moves import Mover
from satrap.train.schedule import TrainingSchedule, schedule_of
from satrap.train.schema_checks import check_data, check_made_for, check_training
from satrap.train.state.dense_optimizer import ADAM, DenseOptimizer, adam
from satrap.train.state.initial_rows import load_rows
from satrap.train.state.rebuild import MakeModel, trainer_arguments
from satrap.train.state.snapshots import Snapshots, series_of
from satrap.train.state.training_state import TrainingState
from satrap.train.state.warm_start import WarmStartReport, start_from
from satrap.train.step.dummy_batch import blank_batch
from satrap.train.step.forward_backward import ForwardBackward, Loss
from satrap.train.step.loss import LabelLoss
from satrap.train.step.pair_loss import ComparingLoss, compared, comparing
from satrap.train.step.split_batch import MicroBatches, check_parts
from satrap.train.worker_context import WorkerContext


@checked(
    model='pass an nn.Module, for example satrap.models.create("dnn", schema)',
    schema='pass satrap.Schema(labels=["clicked"], features={"user": satrap.Categorical(dim=16)})',
    embedding_optimizer="use one of satrap.optim, for example satrap.optim.RowWiseAdagrad(lr=0.05)",
    dense_optimizer=f"the trainer passes it the parameters: pass {ADAM}",
    observers="derive a class from satrap.train.Observer, override its methods, pass observers=[Mine()]",
)
class Trainer:
    """Trains a PyTorch model whose embeddings live in a satrap store.

    ```python
    trainer = satrap.Trainer(model, schema, dense_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3))
    result = trainer.fit(train, validation=validation, epochs=2)
    trainer.evaluate(test)
    ```

    A model is any `nn.Module` whose `forward` takes an `EmbeddedBatch` and returns float32[size,
    `schema.outputs`], see `satrap.Label`. Embeddings are not parameters of it: they are rows of the store,
    created on first use and updated by `embedding_optimizer` once per unique id and step. `mode` sets how far
    lookups run ahead. In "sync" each lookup sees every earlier update. In "hybrid" it misses exactly the
    latest `staleness` updates, so that reading, lookup and update overlap with the network; in the first
    steps it misses fewer, see `TrainingOptions.staleness_warmup`. In these modes, one worker is reproducible
    to the bit, given the same seeds (`torch.manual_seed` for the network's own parameters). "async", a
    baseline, keeps the network's weights in the store as well: workers push and pull, and never wait.

    A step whose loss or gradients are not finite is rejected as a whole and counted. After 100 rejected steps
    in a row, or if every step was rejected, the run ends with an error. In float16, a step that is rejected
    to reduce the loss scale does not count.

    Args:
        model: the network. An attribute `embedding_dims` (feature -> width) overrides the schema's dims.
        schema: labels and features.
        embedding_optimizer: optimizer of the rows; default row-wise Adagrad with lr 0.05, as in a recipe.
        dense_optimizer: makes the `torch.optim` optimizer from the list of parameters; default Adam with
            lr 0.001, as in a recipe; defaults are reported in the log `satrap`. None: the trainer can
            evaluate and predict only.
        mode: "hybrid" (default), "sync" or "async".
        staleness: τ of "hybrid" and "async", default 4.
        lookahead: in "sync", how many steps before its use a lookup is issued, default 0. Results are the
            same to the bit; rows that the steps in between change are patched. Not for several workers,
            nor where rows are evicted or admitted.
        device: device of the network, default "cpu".
        store: initialization and limits of rows, see `satrap.store.StoreConfig`.
        training: learning-rate schedule, clipping, early stopping, precision, see `TrainingOptions`.
        loss: (logits, batch) -> scalar, a mean over the samples; or one of `satrap.losses`, for models that
            compare vectors; default the mean over all known labels.
        place: location of the rows, and the other workers, see `WorkerContext`; default this process
            alone.

    Attributes:
        predictor: scores with the current weights and rows.
        state: the trained state and the progress of training.

    Raises:
        ConfigError: invalid arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        *,
        embedding_optimizer: Optimizer = EMBEDDING_DEFAULT,
        dense_optimizer: MakeOptimizer | None = adam,
        mode: str = "hybrid",
        staleness: int = 4,
        lookahead: int = 0,
        device: str | torch.device = "cpu",
        store: StoreConfig = StoreConfig(),
        training: TrainingOptions | None = None,
        loss: Loss | PairLoss | None = None,
        place: WorkerContext | None = None,
    ) -> None:
        make = dense_optimizer and DenseOptimizer(dense_optimizer)
        _log_defaults(embedding_optimizer, dense_optimizer, place)
        check_made_for(model, schema)
        place, self.loss = place or WorkerContext(), _loss_for(model, schema, loss)
        options = self.training = (training or TrainingOptions()).suited(schema.labels)
        self.schema, self.store, self.workers, self._desk = schema, store, place.workers, place.desk
        schedule = schedule_of(mode, staleness, lookahead, options.staleness_warmup)
        network, dims = models.describe(model), getattr(model, "embedding_dims", None)
        self.mode, self.staleness, self.embedding_optimizer = mode, schedule.staleness, embedding_optimizer
        chosen = prepare(place.device or device, place.threads)
        settings = _settings_of(model, mode, lookahead, chosen, options, self.workers, store)
        compatibility.check(settings := settings | _of_loss(schema, loss))
        kind = _backend(schedule, self.workers, options)
        self.model = _prepared(model, options, chosen, self.workers)
        clip_norm, precision = options.clip_norm, options.precision
        tables = self._tables = tables_of(schema, embedding_optimizer, dims, store)
        _check_lookahead(store.bounds(tables) if lookahead else {})
        self.dense: DenseBackend = kind(model, make, clip_norm, self.workers, precision)
        tables = [*tables, *self.dense.tables({table.dim for table in tables})]
        whole = not (lookahead or settings[PAIRS]) and _whole(options)
        self.exchange = _exchange(place, tables, store, pools=whole)
        if lookahead:
            self.exchange = with_lookahead(self.exchange)
        self._load_rows = partial(load_rows, self.exchange.rows, schema, self._tables, store)
        compatibility.check(settings | _of_exchange(self.exchange))
        self.dense.attach(self.exchange.groups)
        self.predictor = Predictor(
            model,
            schema,
            self.exchange,
            device=chosen,
            workers=self.workers,
            precision=precision,
            metrics=metrics_of(schema, options.metrics, options.ranking),
        )
        _score_by(self.dense, self.predictor)
        self.control = PlateauControl.of(options)
        optimizers = {
            "embedding_optimizer": embedding_optimizer.to_dict(),
            "dense_optimizer": (make and make.description) or None,
        }
        arguments = {"model": network, **optimizers, **_settings(store, options, loss)}
        self.state = TrainingState(self.predictor, self.dense, self.control, schedule, arguments)

    @property
    def run(self) -> FitStats:
        """The account of the current or last `fit`."""
        return self.state.run

    def fit(
        self,
        data: Any,
        *,
        validation: Any = None,
        epochs: int = 1,
        steps: int | None = None,
        observers: Sequence[Observer] = (),
        checkpoint: Checkpointing | None = None,
        resume: bool = False,
        progress: bool = False,
    ) -> Result:
        """Train the model.

        Args:
            data: the training samples: a data set, or a stream, which is one epoch that may never end. Or
                anything that `satrap.data.read` takes, whose rows are then shuffled, or an iterable of dicts
                of columns, each a batch, such as a `DataLoader`.
            validation: evaluated after each epoch; drives `plateau` and `patience` by the `monitor`. If that
                is "auc" or "logloss" and not all labels are binary, the loss decides instead.
            epochs: number of epochs, default 1.
            steps: end after this many steps, even within an epoch.
            observers: notified of every step and evaluation.
            checkpoint: where and how often snapshots, and a feed, are written; None: never.
            resume: continue from the newest snapshot there, as if the run had never ended. The trainer must
                be new, with the same arguments as the previous one.
            progress: show the progress line of `satrap train` on standard error, once for all workers.

        Returns:
            The result, with the validation metrics of the kept weights.

        Raises:
            ConfigError: no dense optimizer, epochs or steps below 1, an unmeasured label, or no snapshot.
            CheckpointError: the snapshot is damaged.
            DataError: the data or the file of a table's rows is unreadable or empty, or too small to rank.
            TrainingError: 100 steps in a row, or all steps of a shorter run, were not finite.
        """
        self.predictor.check_open()
        data, validation = _batches_to_fit(self, data, validation, epochs, steps)
        line = ProgressLine() if progress and self.workers.rank == 0 else None
        observers = [*observers, *([line] if line else [])]
        self.state.begin(epochs, observers, series_of(checkpoint), data)
        snapshots = Snapshots(self.state, checkpoint, data)
        self.workers.meet("start of training")  # a barrier: networks may have taken long to build
        if resume:
            snapshots.resume()
        else:
            self.dense.begin()
            self.state.start_rows(self._load_rows)
        self.state.seed_rows()
        # `snapshots` is the innermost context, so that it saves after a stop while the others are still open.
        watched = self.run.watching(self.exchange, data)
        with line or nullcontext(), watched, closing(self.state.best), snapshots:
            compute = ForwardBackward(self.state, _at_work(self, data), self.training.microbatches)
            mover, rates = Mover(self.state, self._desk, snapshots), self.training.lr_schedule
            Loop(self.state, compute, rates, snapshots, mover).run(data, validation, epochs, steps)
            self.state.total_up()
            snapshots.ended()
            self.state.restore_best()  # only after everything is written: it replaces rows and weights
        return self.run.finish()

    def warm_start(self, url: str, *, state: bool = False) -> WarmStartReport:
        """Take weights and rows of another run, as far as they match, before `fit`; return what matched.

        Numeric features keep the statistics of this trainer's schema. For the arguments see `WarmStart`.

        Raises:
            CheckpointError: the checkpoint is missing or damaged.
            ConfigError: nothing matches, or the trainer has begun to train.
        """
        self.predictor.check_open()
        return start_from(WarmStart(url, state), self.state, self._tables, self.store)

    def request_stop(self) -> None:
        """End `fit` after the step, or during an evaluation, on all workers; safe in a signal handler.

        With `checkpoint`, a snapshot is saved and `fit` returns; without, it raises KeyboardInterrupt after
        the step.
        """
        self.state.stopping = True

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return the metrics of a data set; this does not train and creates no rows.

        Args:
            data: samples with labels, as for `fit`, but in their order. Each of several workers passes its
                share, and gets the metrics of all.

        Returns:
            "auc", "logloss", "ne", "calibration" and, with a group column, "gauc" of a binary label; "rmse",
            "mae", "r2" and "loss" of a regression label; "accuracy" and "logloss" of a multiclass one. With
            several labels one set each ("income/auc") and means, see `satrap.metrics.Metrics`. Also the
            metrics in `TrainingOptions.metrics` and `TrainingOptions.ranking`.

        Raises:
            DataError: the data cannot be read, has no rows or no labels.
        """
        self.predictor.check_open()
        self.state.settle("evaluation")
        return self.predictor.evaluate(data)

    @overload
    def predict(self, data: Any, *, stream: Literal[False] = False) -> Rows: ...
    @overload
    def predict(self, data: Any, *, stream: Literal[True]) -> Iterator[Rows]: ...
    def predict(self, data: Any, *, stream: bool = False) -> Rows | Iterator[Rows]:
        """Return the predictions of all samples, float32[samples, `schema.outputs`], in the data's order.

        Probabilities for binary labels and classes, numbers for regression labels; float64 if there is one.
        With `stream`, a generator of one such array per batch. With `shuffle`, in the order of epoch 0.
        """
        return self.predictor.predict(data, stream=True) if stream else self.predictor.predict(data)

    def save(self, url: str) -> None:
        """Write model, optimizer, tables and counters to a folder or fsspec URL, as one snapshot.

        An older snapshot there stays readable until the new one is complete.

        Raises:
            CheckpointError: it cannot be written.
        """
        self.predictor.check_open()
        _, error = self.state.save([url])
        if error is not None:
            raise error

    @classmethod
    def load(
        cls,
        url: str,
        model: nn.Module | MakeModel | None = None,
        *,
        dense_optimizer: MakeOptimizer | None = None,
        memory: int | None = None,
        eviction: Eviction | None = None,
        tier: Tier | None = None,
        **arguments: Any,
    ) -> Trainer:
        """Load a model written by `save` or `satrap train`.

        Args:
            url: folder or fsspec URL of a saved model, or of a run; if the run has no model yet, its newest
                snapshot is read.
            model: the network, or a function that makes it from the schema. Not needed if it is one of
                `satrap.models`, or if the URL is a run folder with the code of the user's own model, which is
                then executed.
            dense_optimizer: as for the constructor; default None: the saved one. If that is not one of
                `torch.optim`, or had several parameter groups, the trainer can evaluate and predict only.
            memory, eviction, tier: of the store, see `satrap.store.StoreConfig`; default none, also for
                tables that had their own.
            **arguments: other constructor arguments; mode, staleness and both optimizers default to the
                saved ones. All other settings of the store are as saved.

        Raises:
            CheckpointError: the checkpoint is missing, incomplete or damaged.
            ConfigError: the model is not the saved one.
        """
        checkpoint = read_checkpoint(newest(url))
        check_resumable(checkpoint.settings, url)
        saved = trainer_arguments(checkpoint, model, url)
        saved["store"] = saved["store"].limited(StoreConfig(memory=memory, eviction=eviction, tier=tier))
        if dense_optimizer is not None:
            saved["dense_optimizer"] = dense_optimizer
        trainer = cls(**saved | arguments)
        try:
            trainer.state.restore(checkpoint)
        except SatrapError:
            trainer.close()
            raise
        return trainer

    def statistics(self) -> ExchangeStatistics:
        """Return the counters of the store."""
        return self.predictor.statistics()

    def close(self) -> None:
        """Release the store and its thread. Closing twice is fine."""
        self.predictor.close()

    def __repr__(self) -> str:
        schema, mode = self.schema, self.mode + (f", staleness={self.staleness}" if self.staleness else "")
        return (
            f"Trainer({type(self.model).__name__}, {len(schema.features)} features, "
            f"labels={list(schema.label_names)}, mode={mode}, steps={self.run.steps})"
        )


def _log_defaults(embedding: Optimizer, dense: MakeOptimizer | None, place: WorkerContext | None) -> None:
    """Log the optimizers that were chosen by default; with a place, a recipe has chosen them."""
    chosen = [f"embedding_optimizer={described(embedding)}"] if embedding is EMBEDDING_DEFAULT else []
    chosen += [f"dense_optimizer=Adam(lr={DENSE_LR})"] if dense is adam else []
    if chosen and place is None:
        logging.getLogger("satrap").warning("note: by default, as in a recipe: %s", ", ".join(chosen))


def _batches_to_fit(
    trainer: Trainer, data: Any, validation: Any, epochs: int, steps: int | None
) -> tuple[TrainingData, BatchSource | None]:
    """Return the data and the validation data of a `fit` as batches, checked."""
    data = as_batches(data, trainer.schema, training=True)
    if validation is not None:
        validation = as_batches(validation, trainer.schema, name="validation")
    _check_fit(trainer, data, validation, epochs, steps)
    trainer.predictor.lists.trained_on(data)
    trainer.predictor.lists.prepare(validation)
    return data, validation


def _check_fit(trainer: Trainer, data: object, validation: object, epochs: int, steps: int | None) -> None:
    check_training(data, trainer.schema)
    if not trainer.dense.trainable:
        raise ConfigError(
            "this trainer has no dense_optimizer, so it can only evaluate and predict",
            fix="pass it to Trainer(..., dense_optimizer=...) or Trainer.load(..., dense_optimizer=...), "
            f"for example {ADAM}",
        )
    if epochs < 1 or (steps is not None and steps < 1):
        raise ConfigError(f"epochs and steps must be >= 1, got epochs={epochs}, steps={steps}")
    unmeasured = [label.name for label in trainer.schema.labels if label.unmeasured]
    if unmeasured and isinstance(trainer.loss, LabelLoss):
        raise ConfigError(
            f"label {unmeasured[0]!r} has no mean and std yet",
            why="a label that is far from 0, or much larger than 1, is learnt very slowly",
            fix="call satrap.data.measure(schema, dataset) and use the schema it returns",
        )
    for dataset in (data, validation):
        check_data(dataset, trainer.schema, labels=True)


def _loss_for(model: nn.Module, schema: Schema, loss: Loss | PairLoss | None) -> Loss | PairLoss:
    """Return the loss, by default of the labels; `ConfigError` if it needs vectors that the model lacks."""
    if isinstance(loss, PairLoss):
        compared(model, schema, loss)
        if len(schema.labels) != 1 or schema.labels[0].kind != "binary":
            raise ConfigError(
                f"loss {loss.name} needs one label, binary or implicit",
                why="rows with label 1 are the pairs",
                fix="set implicit: true in the label, or threshold for a rating",
            )
    return loss or LabelLoss(schema.labels)


def _at_work(trainer: Trainer, data: TrainingData) -> Loss | ComparingLoss:
    """Return the loss of a trainer; one of pairs counts the items of the data."""
    loss, group = trainer.loss, trainer.workers.data
    if not isinstance(loss, PairLoss):
        return loss
    seed, arrays = trainer.store.seed, trainer.state.of_loss
    return comparing(loss, trainer.model, trainer.schema, data, group, seed, arrays)


def _settings(store: StoreConfig, options: TrainingOptions, loss: Loss | PairLoss | None) -> dict[str, Any]:
    """Return the settings of the store, the options and the loss for a checkpoint, as plain data."""
    return {
        "loss": loss.to_dict() if isinstance(loss, PairLoss) else user_code.reference_of(loss),
        "seed": store.seed,
        "initial_scale": store.initial_scale,
        "embedding_dtype": store.dtype,
        "tables": {name: table.to_dict() for name, table in store.tables.items()},
        "admission": (store.admission or Admission()).to_dict(),
        "eviction": store.eviction and {**store.eviction.to_dict(), "memory": store.memory},
        "lr_schedule": options.lr_schedule.to_dict(),
        "precision": options.precision,
        "metrics": user_code.references_of(options.metrics),
        **({} if options.ranking is None else {"ranking": asdict(options.ranking)}),
    }


def _prepared(
    model: nn.Module, options: TrainingOptions, device: torch.device, workers: Workers
) -> nn.Module:
    check_parts(model, options.microbatches)
    if options.checkpoint_activations and workers.mesh.pipeline == 1:  # pipeline stages do it themselves
        checkpoint_activations(model)
    if record := initial_weights(model):
        record.device = device
    elif weights_are_off(model):
        stay_off(model, device)
    else:
        model.to(device)
    if options.compile:
        compile_blocks(model, device)
    return model


def _backend(
    schedule: TrainingSchedule, workers: Workers, options: TrainingOptions
) -> Callable[..., DataParallelBackend]:
    """Return the constructor of the backend for a mode and a mesh."""
    if workers.mesh.whole:
        return schedule.dense
    if workers.mesh.pipeline == 1:
        from satrap.dense.backends.sharded import ShardedBackend

        return ShardedBackend
    from satrap.dense.backends.pipelined import PipelinedBackend

    return partial(PipelinedBackend, recomputes=options.checkpoint_activations)


def _score_by(dense: DenseBackend, predictor: Predictor) -> None:
    """Let a predictor score in the way of a backend."""
    predictor.collective = dense.collective
    if (pipeline := dense.pipeline) is not None:
        embed = predictor.embeddings.embed
        pipeline.try_out(blank_batch(predictor.plan, predictor.embeddings))
        predictor.embed = lambda ticket, rows: MicroBatches(ticket, rows, embed, pipeline.count)
        predictor.network = pipeline.scores


def _settings_of(
    model: nn.Module,
    mode: str,
    lookahead: int,
    device: torch.device,
    options: TrainingOptions,
    workers: Workers,
    store: StoreConfig,
) -> dict[str, Any]:
    """Return arguments of a trainer as settings of `satrap.compatibility`."""
    return {
        "training.mode": mode,
        "training.lookahead": lookahead,
        "training.device": device.type,
        "embedding.device": rows_device(store.device).type,
        "dense.offload.weights": weights_are_off(model),
        **options.settings,
        **workers.mesh.settings,
    }


def _of_loss(schema: Schema, loss: Loss | PairLoss | None) -> dict[str, Any]:
    """Return a loss, and the kind of the labels, as settings of `satrap.compatibility`."""
    implicit = any(label.implicit for label in schema.labels)
    keys = {f"training.loss.{key}": getattr(loss, key, None) for key in ("logq", "listed")}
    return {PAIRS: isinstance(loss, PairLoss), IMPLICIT: implicit, "training.loss": loss, **keys}


def _whole(options: TrainingOptions) -> bool:
    """Return whether gradients of whole batches are enough, without a norm of the gradients of rows."""
    return options.clip_norm is None and options.microbatches == 1


def _exchange(place: WorkerContext, tables: Sequence[Table], store: StoreConfig, *, pools: bool) -> Exchange:
    """Return the exchange of a place, else one in this process; `pools`: a device may pool its rows."""
    if place.exchange and tables:
        return place.exchange(tables)
    return LocalExchange(open_store(store, tables), pools=pools and store.device != "cpu")


def _check_lookahead(bounds: Mapping[str, str]) -> None:
    for table, what in bounds.items():
        early = {"training.lookahead": True, f"embedding.{what}": True}
        compatibility.check(early, where=f"table {table!r}")


def _of_exchange(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange as settings of `satrap.compatibility`."""
    by = exchange.pooling and exchange.pooling.by
    return {
        "cluster.exchange": "collective" if exchange.collective else "",
        "cluster.embedding_workers": by == "embedding worker",
        POOLS: by == "owner",
    }
