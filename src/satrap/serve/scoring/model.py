"""The served model: the rows and the network of one training step, and the vectors of its towers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from time import perf_counter, time
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from satrap.batch import EmbeddedBatch, Runs
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest
from satrap.data.encode.encoder import MISSING
from satrap.dense.compute.precision import computed
from satrap.embedding.runs import RunEmbeddings
from satrap.errors import SatrapError
from satrap.exchange import LocalExchange
from satrap.exchange.lookup import Array, LookupRequest
from satrap.models.layers.linear import pack
from satrap.pairs import TwoTowers
from satrap.runtime.user_code import blaming
from satrap.schema import Vector
from satrap.serve.http.request import ScoreRequest
from satrap.serve.protocols.json_numbers import scanned
from satrap.serve.scoring.precision import compute_in
from satrap.serve.scoring.signature import Signature
from satrap.serve.versions.history import VersionHistory
from satrap.serve.versions.overlay import Overlay
from satrap.serve.versions.update import Update
from satrap.store.statistics import TierStatistics
from satrap.train import Predictor
from satrap.train.ranking.tower_vectors import TowerVectors
from satrap.train.step.loss import prediction_names

Scores = npt.NDArray[np.float32] | npt.NDArray[np.float64]
VECTOR = "vector"
"""Name of the output of a tower."""


@dataclass(slots=True)
class StageSeconds:
    """Time of the scoring thread by stage."""

    encode: float = 0.0
    lookup: float = 0.0
    network: float = 0.0

    def by_stage(self) -> dict[str, float]:
        """Return stage -> seconds."""
        return {"encode": self.encode, "lookup": self.lookup, "network": self.network}


class ServedModel(Signature):
    """Scores requests with the rows and the network of one training step; one thread scores at a time.

    `prepare` reads later versions of the same run in another thread. `apply` swaps them in for the next
    batch. The changed rows are in an overlay at first; `fold` writes them to the store, some at a time.

    Args:
        name: name of the model, for users and the Open Inference Protocol.
        predictor: a predictor whose rows are in this process; `close` closes it.
        missing: texts that mean "missing", as in training.
        version: `Manifest.id` of its checkpoint, needed for updates.
        published: when this version was cut, in seconds since 1970; None: now.
        precision: the precision of the network, see `compute_in`.
        keep: number of earlier versions kept for `back_to`, default 0.
        keep_bytes: maximum memory of the kept versions, default 256 MiB.

    Attributes:
        step: training step of the served version.
        version, published: the arguments, or the values of the last update.
        outputs: names of the predictions, one for each output of the network.
        score_bytes: 8 if a label is a number, else 4.
        precision: the argument.
        towers: the towers of a model that compares vectors, by name; empty for other models.
        seconds: time spent so far.
        history: the versions for `back_to`.
        held: whether `fold` is paused, so that another thread may read the history; only the scoring thread
            sets it.
        went_back: whether the last update came from `back_to`.
        trouble: returns why requests cannot be answered at present; empty if they can.
        remote: whether `score` waits for other processes.

    Raises:
        ConfigError: the rows are not in this process, or the network does not support the precision.
    """

    remote = False
    towers: Mapping[str, ServedTower] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        missing: Sequence[str] = MISSING,
        version: str = "",
        published: float | None = None,
        precision: str = "float32",
        keep: int = 0,
        keep_bytes: int = 1 << 28,
    ) -> None:
        self._exchange = LocalExchange.of(predictor.exchange)
        self.step, self._predictor = predictor.step, predictor
        self._exchange.warm = True
        schema, labels = predictor.schema.without_labels(), predictor.schema.labels
        outputs = [name for label in labels for name in prediction_names(label)]
        whole = any(label.kind == "regression" for label in labels)
        super().__init__(name, schema, missing, outputs, 8 if whole else 4)
        self.seconds = StageSeconds()
        self.version = version
        self.published = time() if published is None else published
        self._overlay: Overlay | None = None
        self.held = self.went_back = False
        self.history = VersionHistory(self._exchange.shard, keep=keep, most_bytes=keep_bytes)
        self._spare: nn.Module | None = None  # a second network, for the weights of the next update
        self.trouble: Callable[[], str] = str
        self.precision = precision
        predictor.model.eval()
        compute_in(precision, predictor)
        pack(predictor.model)
        self._embeddings = RunEmbeddings(predictor.plan, predictor.embeddings)
        if isinstance(predictor.model, TwoTowers):
            towers = predictor.model.tower_features
            self.towers = {tower: ServedTower(self, predictor, tower, missing) for tower in towers}
        self._warm()

    def _warm(self) -> None:
        """Score made-up rows, so that the first requests do not wait for compilation."""
        features = self._predictor.schema.features.items()
        vectors = {f.column or name: [0.0] * f.dim for name, f in features if isinstance(f, Vector)}
        every: list[ServedModel | ServedTower] = [self, *self.towers.values()]
        for served, value in product(every, (1, "1", None)):
            items: dict[str, list[Any]] = {
                name: [[value] if name in self.lists else value] * 2 for name in served.columns
            }
            items |= {name: [[1.5] if name in self.lists else 1.5] * 2 for name in served.numbers}
            items |= {name: [zeros] * 2 for name, zeros in vectors.items() if name in served.known}
            with suppress(SatrapError):  # the value may be invalid for a column
                served.score(served.encode([ScoreRequest(2, {}, items)]))
        scanned(b'{"items":{"a":[1],"b":[1.5]}}')
        self.seconds = StageSeconds()
        self._exchange.telemetry.start_anew()

    def encode(self, requests: Sequence[ScoreRequest]) -> Runs:
        """Return the ids and numbers of requests, concatenated.

        Raises:
            DataError: a value is invalid; the error names its row and column.
        """
        start = perf_counter()
        runs = self.encoder.runs(requests)
        self.seconds.encode += perf_counter() - start
        return runs

    def score(self, runs: Runs) -> Scores:
        """Return the predictions of rows [size, outputs]: float64 if a label is a number, else float32."""
        return self._computed(self._embeddings, runs, self._predictor.predicted)

    def _computed(
        self, embeddings: RunEmbeddings, runs: Runs, network: Callable[[EmbeddedBatch], Scores]
    ) -> Scores:
        """Return the output of a network, or a part of it, for samples whose rows are looked up."""
        start = perf_counter()
        ticket = embeddings.ticket(runs)
        rows = self._rows(ticket.lookups.requests)
        looked_up = perf_counter()
        with torch.inference_mode():
            scores = network(embeddings.embed(ticket, rows))
        self.seconds.lookup += looked_up - start
        self.seconds.network += perf_counter() - looked_up
        return scores

    def _rows(self, requests: Sequence[LookupRequest]) -> list[Array]:
        """Return the rows of unique ids, float32[ids, dim] for each request."""
        rows = self._exchange.peek(requests)
        if self._overlay is not None:
            self._overlay.cover(requests, rows)
        return rows

    def prepare(self, deltas: Sequence[tuple[Storage, Manifest]]) -> Update:
        """Read the versions after this one, see `Update.read`; not in the scoring thread.

        An earlier prepared update must have been applied or dropped.
        """
        spare, self._spare = self._spare, None
        if spare is None:
            spare = deepcopy(self._predictor.model)
        update = Update.read(deltas, self._exchange.shard, spare, buckets=self._exchange.buckets)
        pack(update.network, like=self._predictor.model)
        return update

    def apply(self, update: Update) -> None:
        """Use an update from now on; in the scoring thread.

        The previous update must be `settled`, unless only this one comes from `back_to`.
        """
        assert self.settled or (update.back and not self.went_back)
        served = self._predictor.model
        if update.back:
            self.history.cut(update.step)
            self._spare = served
            if self._overlay is not None:
                self._overlay.close()
        else:
            self._spare = self.history.add(self.step, self.version, self.published, served)
        self.went_back = update.back
        self._predictor.model = self._predictor.network = update.network
        self._overlay, self.step = update.overlay, update.step
        self.version, self.published = update.version, update.published

    def back_to(self, step: int) -> Update:
        """Return an update to an earlier step in `history`; in another thread, while this model is `held`."""
        version, overlay = self.history.back_to(step)
        return Update(version.step, version.version, version.published, overlay, version.network, back=True)

    @property
    def settled(self) -> bool:
        """Whether all rows of the last update have been written."""
        return self._overlay is None

    @property
    def folding(self) -> bool:
        """Whether rows of the last update must be written now."""
        return self._overlay is not None and not self.held

    def fold(self) -> None:
        """Write some rows of the last update to the store; in the scoring thread."""
        if self._overlay is not None and not self._overlay.fold(self.history.note):
            self._overlay.close()
            self._overlay = None

    def after(self, other: ServedModel) -> Self:
        """Return this model with the counters of the model that it replaces."""
        self.seconds = other.seconds
        self._exchange.telemetry.go_on(other._exchange.telemetry)
        return self

    def rows(self) -> Mapping[str, int]:
        """Return the number of rows by table."""
        return {name: table.rows for name, table in self._predictor.statistics().tables.items()}

    def stored(self) -> tuple[int, TierStatistics]:
        """Return the memory of the rows in bytes, and the counters of the SSD tier."""
        statistics = self._exchange.shard.statistics()
        return statistics.bytes, statistics.tier or TierStatistics()

    def weights(self) -> int:
        """Return the number of weights of the network."""
        return sum(weights.numel() for weights in self._predictor.model.parameters())

    def looked_up(self) -> Mapping[str, tuple[int, int]]:
        """Return, by table, the number of unique ids that were looked up, and of those without a row."""
        statistics = self._predictor.statistics()
        return {table: (ids, statistics.unseen[table]) for table, ids in statistics.peeked.items()}

    def close(self) -> None:
        """Release the rows."""
        if self._overlay is not None:
            self._overlay.close()
        self._predictor.close()


class ServedTower(Signature):
    """The vectors of one tower of a served model, from the same rows and network as its scores.

    Args:
        model: the served model.
        predictor: its predictor.
        tower: name of the tower, which follows a dot in the name for clients: NAME.TOWER.
        missing: texts that mean "missing", as in training.
    """

    vectors = True

    def __init__(self, model: ServedModel, predictor: Predictor, tower: str, missing: Sequence[str]) -> None:
        part = TowerVectors(predictor, tower)
        super().__init__(f"{model.name}.{tower}", part.schema, missing, [VECTOR], 4)
        self._model, self._predictor, self._tower = model, predictor, tower
        self._embeddings = RunEmbeddings(part.plan, part.embeddings)

    def encode(self, requests: Sequence[ScoreRequest]) -> Runs:
        """See `ServedModel.encode`."""
        start = perf_counter()
        runs = self.encoder.runs(requests)
        self._model.seconds.encode += perf_counter() - start
        return runs

    def score(self, runs: Runs) -> Scores:
        """Return the vectors of rows, float32[size, width]."""
        return self._model._computed(self._embeddings, runs, self._vectors)

    def _vectors(self, batch: EmbeddedBatch) -> Scores:
        towers: Any = self._predictor.model
        with blaming(f"tower_vectors of {type(towers).__name__} failed"):
            vectors = computed(
                lambda: towers.tower_vectors(self._tower, batch),
                self._model.precision,
                self._predictor.embeddings.device,
            )
        result: Scores = vectors.float().cpu().numpy()
        return result
