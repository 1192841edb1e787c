"""Changes of rows, as overlays and as dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import LookupRequest
from satrap.serve.versions.overlay import Overlay
from satrap.store import RowChunk

TABLES = ["a", "b"]
IDS = np.arange(12, dtype=np.uint64)

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(TABLES),
        st.booleans(),
        st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True),
        st.integers(1, 99),
    ),
    max_size=8,
)
"""(table, remove, ids, value) each: rows that get a value or are removed."""


def chunk(table: str, ids: list[int], value: float, width: int = 0) -> RowChunk:
    own = np.array(ids, np.uint64)
    weights = np.repeat((own + np.float32(value)).astype(np.float32)[:, None], 2, axis=1)
    return RowChunk(table, own, weights, np.zeros((len(own), width), np.float32))


def read(exchange: LocalExchange, over: Overlay | None) -> dict[str, Any]:
    """Return the rows of all ids by table."""
    splits = np.array([0, len(IDS), 2 * len(IDS)], np.int64)
    requests = [LookupRequest(0, np.concatenate([IDS, IDS]), splits)]
    rows = exchange.peek(requests)
    if over is not None:
        over.cover(requests, rows)
    return {"a": rows[0][: len(IDS)].copy(), "b": rows[0][len(IDS) :].copy()}


def changed(exchange: LocalExchange, changes: Any, width: int = 0) -> tuple[Overlay, dict[str, Any]]:
    """Return an overlay of the changes, and the rows that are to be read."""
    wanted, initial = read(exchange, None), read(LocalExchange(exchange.shard.another()), None)
    over = Overlay(exchange.shard)
    for table, remove, ids, value in changes:
        if remove:
            over.remove(table, np.array(ids, np.uint64))
            wanted[table][ids] = initial[table][ids]
        else:
            over.load(chunk(table, ids, value, width))
            wanted[table][ids] = chunk(table, ids, value).weights
    over.seal()
    return over, wanted
