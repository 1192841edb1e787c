"""The models of the comparison, with settings that were chosen on the validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import satrap
from benchmarks.next_item.data_sets import LENGTH
from satrap.losses import BPR, PairLoss, SampledSoftmax
from satrap.optim import Adagrad, Adam, Optimizer
from satrap.schema import Feature

DIM = 64
MOVIE = satrap.Categorical(dim=DIM)
LIST = satrap.Categorical(dim=DIM, table="movie", multi=True)
HISTORY = replace(LIST, pooling="none", sequence="past", max_values=LENGTH, keep="last")
USERS: dict[str, Feature] = {"user": satrap.Categorical(dim=DIM), "movie": MOVIE, "rated": LIST}
HISTORIES: dict[str, Feature] = {"history": HISTORY, "movie": MOVIE, "rated": LIST}
TOWERS = {"item": ["movie"], "user": ["user"], "width": DIM, "hidden": []}


@dataclass(frozen=True, kw_only=True)
class Way:
    """A model with its settings.

    Args:
        model: name of the model.
        features: of the schema.
        options: arguments of the model.
        loss: compares vectors.
        rows: optimizer of the rows.
        network_lr: learning rate of Adam for the network.
        initial_scale: largest initial number of a row.
        data: the training rows, see `Events`.
        batch: rows of a batch.
        epochs: most passes over the training rows.
        patience: passes in a row without a better one after which training ends.
    """

    model: str
    features: Mapping[str, Feature]
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: PairLoss
    rows: Optimizer
    network_lr: float = 1e-3
    initial_scale: float = 0.05
    data: Literal["pairs", "windows"] = "windows"
    batch: int = 64
    epochs: int = 40
    patience: int = 2


NEXT = Way(
    model="sasrec",
    features=HISTORIES,
    options={"every_event": True},
    loss=SampledSoftmax(negatives=256, logq=True),
    rows=Adam(lr=0.005),
    network_lr=2e-3,
    batch=16,
    epochs=12,
)
TWO_TOWER = Way(
    model="two_tower",
    features=USERS,
    options=TOWERS,
    loss=SampledSoftmax(negatives=512, logq=True),
    rows=Adagrad(lr=0.1),
    data="pairs",
    batch=1024,
    epochs=4,
)
WAYS: dict[str, Way] = {
    "bpr": replace(TWO_TOWER, loss=BPR(in_batch=False, negatives=64), epochs=8),
    "two_tower": TWO_TOWER,
    "gru4rec": replace(NEXT, model="gru4rec", epochs=20, patience=4),
    "sasrec": NEXT,
    "bert4rec": replace(NEXT, model="bert4rec", options={}),
}
