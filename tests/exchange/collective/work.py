"""What the ranks of an exchange ask for, train and save."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from satrap.checkpoint import Checkpoint, Series
from satrap.exchange import Lookup, LookupRequest, SnapshotCut
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.protocol import TableGroup
from satrap.exchange.wire.sections import Section
from satrap.store import StoreConfig
from tests.contract.parties import SEED, gradients_for, random_requests, request
from tests.exchange.collective.parties import Together

GROUPS = [TableGroup(0, ("a", "b"), 4), TableGroup(1, ("c",), 17)]
IDS = st.lists(st.integers(0, 30) | st.integers(2**64 - 3, 2**64 - 1), unique=True, max_size=20)


@st.composite
def asked(draw: st.DrawFn) -> dict[int, Section]:
    """What one rank asks one owner for: distinct ids in each table of some groups."""
    parts = {}
    for group in GROUPS:
        if draw(st.booleans()):
            tables = [draw(IDS) for _ in group.tables]
            ids = np.array([i for table in tables for i in table], np.uint64)
            splits = np.cumsum([0, *map(len, tables)]).astype(np.int64)
            parts[group.index] = Section(group.index, splits, ids)
    return parts


STEPS = 8
STORE = StoreConfig(seed=SEED)
Work = list[tuple[list[LookupRequest], list[np.ndarray]]]


def batches(seed: int) -> Work:
    """Steps of a rank; now and then it has no batch."""
    rng = np.random.default_rng(seed)
    made = [random_requests(rng) if (step + seed) % 5 else [] for step in range(STEPS)]
    return [(wanted, gradients_for(rng, wanted)) for wanted in made]


def run(exchange: CollectiveExchange, work: Work, ahead: int) -> list[np.ndarray]:
    pending: list[tuple[Lookup[np.ndarray], list[np.ndarray]]] = []
    seen: list[np.ndarray] = []
    for step in range(len(work) + ahead):
        if step < len(work):
            pending.append((exchange.lookup(work[step][0], create=True), work[step][1]))
        if step >= ahead:
            lookup, gradients = pending[step - ahead]
            seen += lookup.result()
            refused = step % 4 == 3  # as a step whose loss is not finite
            exchange.apply(lookup, [] if refused else gradients, lr_scale=0.5)
    exchange.flush()
    return seen


def change(exchange: Together, ids: range) -> None:
    lookup = exchange.lookup([request(0, list(ids), []), request(1, list(ids))], create=True)
    exchange.apply(lookup, [np.ones((len(ids), dim), np.float32) for dim in (4, 17)], lr_scale=1.0)


def write(series: Series, step: int, cut: SnapshotCut) -> None:
    series.write(step, Checkpoint({}, {"w": torch.zeros(1)}, {}, (), rows=cut.write, deleted=cut.deleted))
