"""What every snapshot must hold, table by table, whichever processes wrote it and the one before: rows of the
table's own ids, none lost, trained further or as they were, with their counters and order of eviction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load
from tests.xxh64 import xxh64

from satrap.checkpoint import Series
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.exchange.states import COUNTS
from satrap.store import BUCKETS, bucket_of
from satrap.store.kernels.index import layout
from tools_dev.chaos.changes import (
    BOUND,
    EPOCHS,
    FROZEN,
    KEPT,
    KINDS,
    MOST_HOLDERS,
    ROOM,
    TRAINED,
    ids,
    vectors,
)
from tools_dev.chaos.drawing import LEAST_MEMORY, Configuration
from tools_dev.chaos.oracle import LEAST_AUC, Looked

ROW_BYTES = 64
"""Most that a row of the tables that evict takes."""
LEAST_ROWS = (ROOM // MOST_HOLDERS - LEAST_MEMORY) * MOST_HOLDERS // ROW_BYTES
"""Rows for which a table has room, whoever holds it."""

Rows = dict[int, tuple[np.ndarray, np.ndarray]]
"""Id -> weights and state."""


class TablesOracle:
    """Judges the snapshots of a run that other processes go on with.

    Args:
        configuration: of the run.
    """

    exact = False

    def __init__(self, configuration: Configuration) -> None:
        c = configuration
        self._c, self.looked = c, Looked()
        self._evicts = c["eviction"] != "none" and not c["lookahead"]
        self._seen: tuple[int, dict[str, Rows], dict[str, list[int]], int] | None = None

    def snapshots(self, run: Path, before: int | None) -> int | None:
        """Check the snapshots that a reader finds; return the step of the newest."""
        series = Series(str(run / "checkpoints"))
        steps = series.steps()
        if before is None:
            self._seen = None
        for step in steps:
            series.verify(step)
            self._snapshot(series.place(step), step)
        newest = max(steps, default=None)
        assert before is None or (newest is not None and newest >= before), f"{before} was lost: {steps}"
        return newest

    def _snapshot(self, url: str, step: int) -> None:
        settings = read_manifest(Storage(url)).settings
        rows, counts, samples = rows_of(url), settings[COUNTS], _samples(self._c, settings)
        self.looked.snapshots += 1
        try:
            self._own(rows, url)
            self._updates(counts, step)
            if self._seen is not None and self._seen[0] < step:
                assert samples > self._seen[3], f"{samples} samples after {self._seen[3]}"
                self._later(rows, counts)
                self.looked.compared += 1
        except AssertionError as error:
            raise AssertionError(f"step {step}: {error}") from error
        if self._seen is None or self._seen[0] < step:
            self._seen = step, rows, counts, samples

    def _own(self, rows: dict[str, Rows], url: str) -> None:
        """Check ids, the rows that never change, and that the order of eviction is that of these rows."""
        for table, known in ids().items():
            assert rows.get(table, {}).keys() <= known, f"table {table} has rows of foreign ids"
        assert len(rows[FROZEN]) == KINDS
        for value in range(KINDS):
            weights, _ = rows[FROZEN][xxh64(f"k{value}".encode(), 0)]
            assert (weights == vectors()[value]).all(), f"the row {value} of {FROZEN} has changed"
        indexed = dict[str, set[int]]()
        for table, buckets, found in indexes(url):
            own = {i for i in rows[table] if int(bucket_of(table, np.array([i], np.uint64))[0]) in buckets}
            assert found == own, f"table {table}: the order of eviction is not of the rows in {buckets}"
            assert not indexed.setdefault(table, set()) & found
            indexed[table] |= found
        for table in BOUND if self._evicts else ():
            assert indexed[table] == rows[table].keys(), f"table {table}: rows without order of eviction"

    def _updates(self, counts: dict[str, list[int]], step: int) -> None:
        """Check the updates of each table that learns: one per step where workers take steps together."""
        for table in (*BOUND, KEPT):
            updates, _ = counts[table]
            if self._c["mode"] == "sync":
                assert updates == step, f"table {table} has {updates} updates"
            assert updates >= step // 2, f"table {table} has {updates} updates"

    def _later(self, rows: dict[str, Rows], counts: dict[str, list[int]]) -> None:
        """Check rows and counters against those of the snapshot before."""
        assert self._seen is not None
        _, earlier, before, _ = self._seen
        for table in (*BOUND, KEPT):
            gone = earlier[table].keys() - rows[table].keys()
            stays = not self._evicts or table == KEPT
            # A table that evicts is never emptier than it must be; buckets of ids fill it unevenly. By age,
            # rows go that none of the last steps has met: with half the workers, half as many stay.
            full = 1 if self._c["eviction"] == "ttl" else LEAST_ROWS * 0.6
            least = len(earlier[table]) if stays else min(len(earlier[table]) * 0.6, full)
            assert len(rows[table]) >= least, f"{len(gone)} of {len(earlier[table])} rows of {table} went"
            assert not (stays and gone), f"{len(gone)} rows of {table} went"
            assert all(a >= b for a, b in zip(counts[table], before[table], strict=True)), (counts, before)
            for id_ in earlier[table].keys() & rows[table].keys() if stays else ():
                (old, spent), (new, now) = earlier[table][id_], rows[table][id_]
                assert (now >= spent).all(), f"row {id_} of {table} was trained less than before"
                # A small gradient moves a weight by less than the sum of squares can tell.
                moved = (now > spent).any() or np.allclose(old, new, rtol=0, atol=1e-4)
                assert moved, f"row {id_} of {table} differs, untrained"

    def end(self, run: Path) -> None:
        """Check what a run has left that got to its end."""
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["stopped"] == "epochs"
        assert metrics["samples"] == EPOCHS * TRAINED, metrics["samples"]
        assert metrics["refused"] == 0
        assert math.isfinite(metrics["logloss"])
        assert metrics["auc"] > LEAST_AUC, metrics["auc"]
        rows = rows_of(str(run / "model"))
        for table in (*BOUND, KEPT):
            assert rows[table].keys() <= ids()[table]
            if self._c["admission"] == "none" and not (self._evicts and table != KEPT):
                assert rows[table].keys() == ids()[table], f"rows of {table} are missing"
        self.looked.finished += 1


def _samples(c: Configuration, settings: dict[str, Any]) -> int:
    own = [part["progress"]["samples"] for part in (settings["run"], *settings["peers"])]
    return int(sum(own)) if c["mode"] == "async" else int(own[0])


def rows_of(url: str) -> dict[str, Rows]:
    """Return the rows of a checkpoint by table; each id is there once."""
    found: dict[str, Rows] = {}
    for table, chunk in open_chain(url).chunks():
        own = found.setdefault(table, {})
        for id_, weights, state in zip(chunk.ids.tolist(), chunk.weights, chunk.state, strict=True):
            assert id_ not in own, f"row {id_} of {table} is there twice"
            own[id_] = weights, state
    return found


def indexes(url: str) -> Iterator[tuple[str, range, set[int]]]:
    """Yield each table whose order of eviction a store wrote: its name, the store's buckets, and the ids."""
    storage = Storage(url)
    manifest = read_manifest(storage)
    for name, entry in manifest.files.items():
        if not name.startswith("store."):
            continue
        arrays = load(storage.read(f"{manifest.data}/{name}", entry))
        assert all(key.startswith("[") for key in arrays), "buckets that are not neighbours"
        for key in [key for key in arrays if key.endswith(".index.keys")]:
            prefix = key.removesuffix("keys")
            tables = json.loads(prefix.removesuffix(".index."))
            found = _ids({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
            for number, table in enumerate(tables):
                yield table, range(*(entry.buckets or (0, BUCKETS))), found.get(number, set())


def _ids(index: dict[str, np.ndarray]) -> dict[int, set[int]]:
    """Return the ids in an index by position of their table: segments own pages, whose entries are live."""
    facts = index["facts"].reshape(-1, layout.FACTS)
    pages = index["pages"].reshape(-1, layout.SEGMENT_PAGES)
    each = layout.PAGE_BUCKETS * layout.ENTRIES
    keys, live = index["keys"].reshape(-1, each), index["live"].reshape(-1, each) != 0
    found: dict[int, set[int]] = {}
    for segment in range(layout.FIRST_SEGMENT, len(facts)):
        own = found.setdefault(int(facts[segment, layout.SEGMENT_TABLE]), set())
        for page in pages[segment][: facts[segment, layout.SEGMENT_COUNT]]:
            own |= set(keys[page][live[page]].tolist())
    return found
