"""Scores from a trained network and its rows, without a trainer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap.batch import Batch, EmbeddedBatch
from satrap.checkpoint import Checkpoint, read_checkpoint
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.feed import check_format
from satrap.checkpoint.manifest import reading_settings
from satrap.checkpoint.series import newest
from satrap.data import prefetch
from satrap.data.python_batches import as_batches
from satrap.dense import DENSE_TABLE, Workers
from satrap.dense.compute.precision import check_precision, computed
from satrap.embedding import BatchLookup, embeddings_of, tables_of
from satrap.errors import ConfigError, SatrapError
from satrap.exchange import Exchange, ExchangeStatistics, LocalExchange
from satrap.exchange.states import to_read
from satrap.metrics import Metrics
from satrap.optim import SGD
from satrap.pairs import Pairs
from satrap.runtime.arguments import checked
from satrap.runtime.malloc import keep_freed_memory
from satrap.runtime.threads import default_threads
from satrap.schema import Schema
from satrap.settings.ranking import Ranking
from satrap.settings.training import Metric
from satrap.store import BUCKETS, Shard, StoreConfig
from satrap.store.shard import open_store
from satrap.train.ranking.ranked_lists import RankedLists
from satrap.train.schedule import lookahead
from satrap.train.schema_checks import check_batch, check_data, check_labels, failing
from satrap.train.state.across_workers import merged
from satrap.train.state.rebuild import MakeModel, trainer_arguments
from satrap.train.step.dummy_batch import blank_rows
from satrap.train.step.loss import as_matrix, as_tensor, predictions
from satrap.train.step.split_batch import MicroBatches

Rows = npt.NDArray[np.float32] | npt.NDArray[np.float64]

PREFETCHED_BATCHES = 4
"""Batches read and de-duplicated ahead by the reader thread; more would only cost memory."""

NO_STATE = SGD(lr=1.0)
"""Rows that are not trained need no optimizer state, which may be most of their memory."""

LOOKAHEAD = 2
"""Lookups ahead when nothing is updated, so that their order does not matter."""


Embedded = EmbeddedBatch | MicroBatches
"""The input of a network, or of a pipeline."""


@runtime_checkable
class BatchSource(Protocol):
    """Data to read: `satrap.data.Dataset`, or anything with this method.

    A trainer also uses `num_rows()` and `progress(position, epoch)` of a `Dataset`, if it has them, to
    estimate the length of a run, and `fingerprint()` to check that a resumed run reads the same rows.
    """

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Iterate over one epoch, from a position."""


@runtime_checkable
class TrainingData(Protocol):
    """Data to train on: as `BatchSource`, but it may grow, as in a stream."""

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch | None]:
        """Iterate over one epoch, from a position. None: there is no batch at present."""


@checked()
class Predictor:
    """Scores batches with a trained network. It does not train and creates no rows.

    ```python
    predictor = satrap.train.Predictor.load("runs/x")
    predictions = predictor.predict(data)  # batch by batch: for part in predictor.predict(data, stream=True):
    ```

    Args:
        model: the network, on `device`.
        schema: labels and features.
        exchange: exchange for the rows.
        device: device of the network, default "cpu".
        workers: the processes that evaluate together, default this one alone.
        precision: number format of the network's arithmetic, see `TrainingOptions`.
        metrics: the metrics of `evaluate`; only their settings count. Default the metrics of the labels.

    Attributes:
        plan: turns batches into requests for rows.
        embeddings: turns rows into the network's input.
        embed: returns the input of `network` for a batch and its rows; a pipeline takes microbatches.
        network: computes the logits; initially the model, of which a pipeline has only a part.
        collective: whether each forward pass is a collective of all workers, see `DenseBackend`; initially
            False.
        step: the number of trained steps, if `load` made it, else -1.
        lists: the lists that ranking metrics look at.
    """

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        exchange: Exchange,
        *,
        device: torch.device | None = None,
        workers: Workers | None = None,
        precision: str = "float32",
        metrics: Metrics | None = None,
    ) -> None:
        check_precision(precision)
        self._metrics = metrics or metrics_of(schema)
        self.collective = self._passed = self._closed = False
        self.step = -1
        self.model, self.schema, self.exchange = model, schema, exchange
        self.network: Callable[[Any], Tensor] = model
        self.workers, self.precision = workers or Workers(), precision
        groups = [group for group in exchange.groups if DENSE_TABLE not in group.tables]
        self.plan, self.embeddings = embeddings_of(exchange, schema, groups, device or torch.device("cpu"))
        self.embed: Callable[[BatchLookup, Sequence[Tensor]], Embedded] = self.embeddings.embed
        self.lists = RankedLists(self, self._metrics.ranking, self.workers)

    @classmethod
    def load(
        cls,
        url: str,
        model: nn.Module | MakeModel | None = None,
        *,
        device: str | torch.device = "cpu",
        store: StoreConfig = StoreConfig(),
        threads: int | None = None,
        metrics: Sequence[Metric] | None = None,
        ranking: Ranking | None = None,
    ) -> Predictor:
        """Load a model written by `Trainer.save` or `satrap train`, or a snapshot of `Trainer.fit`.

        Args:
            url: folder or fsspec URL of a saved model or a run, see `Trainer.load`.
            model: the network, or a function that makes it from the schema, see `Trainer.load`.
            device: device of the network, default "cpu".
            store: its memory, eviction and tier, also per table, limit the rows; default no limits.
                All other settings are as saved.
            threads: PyTorch's threads inside an operation, see `Trainer`.
            metrics: functions, your own metrics, see `satrap.metrics.OwnMetrics`; default the run's metrics.
            ranking: ranking metrics of `evaluate`; default the run's.

        Raises:
            CheckpointError: the checkpoint is missing, incomplete or damaged.
            ConfigError: the model is not the saved one.
            StoreError: the rows do not fit into the memory.
        """
        place = prepare(device, threads)
        # With a tier more rows would fit on the disk, but then the memory for their index would not suffice.
        stateless = store.tier is None
        return predictor_for(
            LocalExchange,
            url,
            model,
            device=place,
            store=store,
            stateless=stateless,
            metrics=metrics,
            ranking=ranking,
        )

    def _restore(self, checkpoint: Checkpoint, url: str, store: Shard) -> None:
        with reading_settings(url):
            self.step = int(checkpoint.settings["steps"])
            self.model.load_state_dict(checkpoint.model)
        for table, chunk in checkpoint.chunks:
            if table != DENSE_TABLE:
                self.exchange.rows.load(table, to_read(store, chunk))

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return the metrics of a data set, see `Trainer.evaluate`."""
        self.check_open()
        data = as_batches(data, self.schema)
        check_data(data, self.schema, labels=True)
        self.lists.prepare(data)
        return merged(self.measure(data.batches()), self.workers)

    def measure(self, batches: Iterable[Batch]) -> Metrics:
        """Return the metrics of this worker's batches, to be merged with the metrics of the other workers.

        If `lists` has items to rank, their vectors are computed first.

        Raises:
            DataError: the data cannot be read, has no rows or no labels.
        """
        ranked, metrics = self.lists.begin(), self._metrics.empty(ranking=not self.lists.unknown)
        for batch, predicted, embedded in self._scored(batches):
            check_labels(batch, self.schema)
            assert batch.labels is not None
            metrics.update(
                batch.labels,
                predicted,
                mask=batch.label_mask,
                weights=batch.weights,
                groups=batch.groups,
            )
            if ranked is not None:
                assert isinstance(embedded, EmbeddedBatch)
                metrics.rank(*ranked.ranks(batch, embedded))
        return metrics

    @overload
    def predict(self, data: Any, *, stream: Literal[False] = False) -> Rows: ...
    @overload
    def predict(self, data: Any, *, stream: Literal[True]) -> Iterator[Rows]: ...
    def predict(self, data: Any, *, stream: bool = False) -> Rows | Iterator[Rows]:
        """Return the predictions of all samples or, with `stream`, of each batch, see `Trainer.predict`."""
        self.check_open()
        data = as_batches(data, self.schema.without_labels())
        check_data(data, self.schema, labels=False)
        parts = self.predict_batches(data.batches())
        return parts if stream else np.concatenate([np.empty((0, self.schema.outputs), np.float32), *parts])

    def predict_batches(self, batches: Iterable[Batch]) -> Iterator[Rows]:
        """Yield the predictions [size, outputs] of batches that the caller reads, see `Trainer.predict`."""
        return (predicted for _, predicted in self.scored(batches))

    def scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Rows]]:
        """Yield each batch with its predictions, [size, outputs]; some batches are read ahead."""
        return ((batch, predicted) for batch, predicted, _ in self._scored(batches))

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Rows, Embedded]]:
        self.model.eval()
        tickets: Iterable[BatchLookup | None] = prefetch(self.tickets(batches), depth=PREFETCHED_BATCHES)
        if self.exchange.collective or self.collective:  # all take part until no worker has a batch left
            first = list(itertools.islice(tickets, 1))
            # A barrier: opening files may take much longer than a lookup.
            self.workers.meet("first batch to score")
            tickets = itertools.chain(first, tickets, itertools.repeat(None))
        if self.collective:
            tickets = self._in_step(tickets)
        lookups = lookahead(
            tickets,
            lambda ticket: self.exchange.lookup(ticket.requests if ticket else [], create=False),
            lambda _: LOOKAHEAD,
        )
        for ticket, lookup in lookups:
            if ticket is None:
                lookup.result()
                if self.collective:
                    with torch.no_grad(), self.workers.watched("forward pass"):
                        self.logits(self.embed(*blank_rows(self.plan, self.embeddings)))
                elif not lookup.active:
                    return
                continue
            with self.workers.watched("forward pass"), torch.no_grad():
                embedded = self.embed(ticket, self.embeddings.rows(lookup.result()))
                predicted = self.predicted(embedded)
            yield ticket.batch, predicted, embedded

    def predicted(self, batch: Embedded) -> Rows:
        """Return the predictions [size, outputs] of embedded samples, without gradients."""
        with torch.no_grad():
            logits = as_matrix(self.logits(batch), batch.size, self.schema.outputs)
            return predictions(logits, self.schema.labels).cpu().numpy()

    def _in_step(self, tickets: Iterable[BatchLookup | None]) -> Iterator[BatchLookup | None]:
        """Yield tickets until no worker has any left; tickets of peers end together."""
        peers, ended = self.workers.peers, False
        for ticket in tickets:
            # Peers hold parts of one network, so a forward pass needs a batch on all of them.
            [have] = peers.count([ticket is not None])
            ended = ended or have < peers.size
            [active] = self.workers.count([not ended])
            if not active:
                return
            yield None if ended else ticket

    def logits(self, batch: Embedded) -> Tensor:
        """Return the network's outputs as float32, in every precision."""
        return as_tensor(self.output(batch), self.schema.outputs)

    def output(self, batch: Embedded) -> Tensor | Pairs:
        """Return the network's logits or, for a batch with candidates, its `Pairs`, in float32."""
        outputs = self.schema.outputs

        def forward() -> Tensor | Pairs:
            output = self.network(batch)
            return output if isinstance(output, Pairs) else as_tensor(output, outputs)

        with nullcontext() if self._passed else failing(self.model, outputs):
            output = computed(forward, self.precision, self.embeddings.device)
        self._passed = True
        return output

    def tickets(self, batches: Iterable[Batch]) -> Iterator[BatchLookup]:
        """Yield the requests for the rows of each batch, after announcing them to the exchange."""
        for batch in batches:
            check_batch(batch, self.schema)
            ticket = self.plan.ticket(batch)
            self.exchange.prefetch(ticket.requests)
            yield ticket

    def statistics(self) -> ExchangeStatistics:
        """Return the counters of the store."""
        self.check_open()
        return self.exchange.telemetry.statistics()

    def check_open(self) -> None:
        """Raise `ConfigError` after `close`."""
        if self._closed:
            raise ConfigError(
                "this trainer or predictor is closed", fix="create another one, or load a checkpoint"
            )

    def close(self) -> None:
        """Release the store and its thread. Closing twice is fine."""
        self._closed = True
        self.exchange.close()


def predictor_for(
    exchange: Callable[[Shard], LocalExchange],
    url: str,
    model: nn.Module | MakeModel | None,
    *,
    device: torch.device,
    store: StoreConfig,
    stateless: bool,
    metrics: Sequence[Metric] | None,
    ranking: Ranking | None = None,
) -> Predictor:
    """Do the work of `Predictor.load`, for rows of some fixed buckets.

    Args:
        exchange: makes the exchange for a store, which gets the rows of its `buckets`.
        url, model, store, metrics, ranking: as in `Predictor.load`.
        device: result of `prepare`.
        stateless: rows have no space for optimizer state.
    """
    chosen = newest(url)
    checkpoint = read_checkpoint(chosen)
    check_format(checkpoint.settings, url)
    saved = trainer_arguments(checkpoint, model, url)
    network: nn.Module = saved["model"].to(device)
    schema, dims = saved["schema"], getattr(network, "embedding_dims", None)
    store, optimizer = saved["store"].limited(store), saved["embedding_optimizer"]
    if stateless:
        store, optimizer = _without_state(store), NO_STATE
    tables = tables_of(schema, optimizer, dims, store)
    options = saved["training"]
    measured = metrics_of(schema, options.metrics if metrics is None else metrics, ranking or options.ranking)
    rows = exchange(open_store(store, tables))
    predictor = Predictor(network, schema, rows, device=device, precision=options.precision, metrics=measured)
    try:
        if len(rows.buckets) < BUCKETS:
            checkpoint.chunks = open_chain(chosen).chunks(buckets=rows.buckets)
        predictor._restore(checkpoint, url, rows.shard)
    except SatrapError:
        predictor.close()
        raise
    return predictor


def _without_state(store: StoreConfig) -> StoreConfig:
    """Return a store whose tables have no optimizers of their own."""
    tables = {name: replace(table, optimizer=None) for name, table in store.tables.items()}
    return replace(store, tables=tables)


def metrics_of(schema: Schema, own: Sequence[Metric] = (), ranking: Ranking | None = None) -> Metrics:
    """Return empty metrics of a schema's labels, the user's own, and ranking metrics.

    Raises:
        ConfigError: the schema lacks what ranking metrics need.
    """
    if ranking is not None:
        ranking.check(schema)
    return Metrics(schema.labels, grouped=schema.group is not None, own=own, ranking=ranking)


def prepare(device: str | torch.device, threads: int | None) -> torch.device:
    """Set PyTorch's threads and the allocator of this process; return the device.

    Raises:
        ConfigError: the device is unknown, or PyTorch does not see it.
    """
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} is unknown", fix="use cpu, cuda or cuda:0") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {str(device)!r} was requested, but PyTorch sees no CUDA device",
            fix="use device: cpu, or install a CUDA build of PyTorch",
        )
    if threads is not None and threads < 1:
        raise ConfigError(f"threads must be >= 1, got {threads}")
    if chosen.type == "cuda" and chosen.index is not None:
        torch.cuda.set_device(chosen)  # rows on "cuda" are then there
    keep_freed_memory()
    torch.set_num_threads(threads or default_threads(torch.get_num_threads()))
    return chosen
