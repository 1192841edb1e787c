"""Embeds samples in runs, such as the items of requests: shared features are looked up and pooled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch, Floats, Offsets, Runs, Shared, repeated, with_shared
from satrap.embedding.lazy import LazyBlocks, LazyFeatures
from satrap.embedding.module import Embeddings
from satrap.embedding.plan import BatchLookup, EmbeddingPlan, Lookups, Span
from satrap.embedding.pooling import Bag, pool_into
from satrap.runtime.numba_cache import compiled

Flags = npt.NDArray[np.bool_]
Inverse = npt.NDArray[np.int32]

_LONG = 4
"""Fewest samples per run, on average, for which separate products of shared columns are worthwhile."""


@dataclass(frozen=True)
class RunLookup:
    """Samples in runs with the lookups they need; like `BatchLookup`, but shared ids occur once.

    Args:
        runs: the samples.
        lookups: the requests, and the positions of the ids.
        groups: the features of each request, in the order of their ids.
    """

    runs: Runs
    lookups: Lookups
    groups: Sequence[Sequence[str]]

    @cached_property
    def expanded(self) -> BatchLookup:
        """The ticket that `EmbeddingPlan.ticket` returns for all samples; the rows are the same."""
        runs, batch = self.runs, self.runs.expanded()
        spans: dict[str, Span] = {}
        inverses = []
        for group, names in enumerate(self.groups):
            parts, end = [], 0
            for name in names:
                _, start, stop = self.lookups.spans[name]
                part = self.lookups.inverses[group][start:stop]
                if name in runs.shared:
                    part = part[repeated(runs.shared[name].offsets, runs.counts)[0]]
                parts.append(part)
                spans[name] = Span(group, end, end + len(part))
                end += len(part)
            inverses.append(np.concatenate(parts))
        return BatchLookup(batch, self.lookups.requests, inverses, spans, [False] * len(inverses))


class RunEmbeddings:
    """Builds a network's input from samples in runs, on the CPU, with a plan and its embeddings."""

    def __init__(self, plan: EmbeddingPlan, embeddings: Embeddings) -> None:
        self._plan, self._embeddings = plan, embeddings
        self._groups = [plan.features_of(group) for group in range(len(plan.groups))]
        self._layouts: dict[tuple[frozenset[str], bytes], tuple[Flags, Flags]] = {}

    def ticket(self, runs: Runs) -> RunLookup:
        """Remove duplicate ids, by table group."""
        return RunLookup(runs, self._plan.lookups({**runs.own, **runs.shared}), self._groups)

    def embed(self, ticket: RunLookup, rows: Sequence[Floats]) -> EmbeddedBatch:
        """Return the network's input, from a ticket and float32[unique, dim] per request.

        See `Embeddings.embed`. The result of `flat` carries its shared columns, see `satrap.batch.Shared`.
        """
        embeddings, runs = self._embeddings, ticket.runs
        if runs.events or not (runs.shared and embeddings.whole):
            return embeddings.embed(ticket.expanded, embeddings.rows(rows))
        numbers = np.empty((runs.size, 0), np.float32) if runs.numeric is None else runs.numeric
        blocks = LazyBlocks(lambda: embeddings.blocks(ticket.expanded, embeddings.rows(rows)))
        return EmbeddedBatch(
            size=runs.size,
            embeddings=LazyFeatures(runs.order, blocks, dict),
            numeric=torch.from_numpy(numbers),
            blocks=blocks,
            source=ticket.runs.expanded(),
            beside=partial(self._flat, ticket, rows[0], numbers),
        )

    def _flat(self, ticket: RunLookup, rows: Floats, numbers: Floats) -> Tensor:
        """Return the result of `EmbeddedBatch.flat`: concatenated pooled features, then the numbers."""
        runs, counts = ticket.runs, ticket.runs.counts
        rows, inverse, starts = self._plain(ticket, rows)
        features, columns = self._layout(runs, rows.shape[1])
        run = np.repeat(np.arange(len(counts)), counts)

        def laid_out(chosen: Flags, run: Offsets, numbers: Floats) -> Floats:
            out = np.empty((len(run), int(chosen.sum()) * rows.shape[1] + numbers.shape[1]), np.float32)
            _lay_out(rows, (inverse, starts[chosen], features[chosen]), run, numbers, out)
            return out

        flat = laid_out(np.ones_like(features), run, numbers)
        if runs.size < _LONG * len(counts):
            return torch.from_numpy(flat)
        firsts, among = np.cumsum(counts) - counts, runs.shared_numbers
        unshared = laid_out(~features, run, numbers[:, ~among])
        shared = laid_out(features, np.arange(len(counts)), numbers[firsts][:, among])
        split = Shared(columns, *map(torch.from_numpy, (shared, run, unshared)))
        with torch.inference_mode(False):  # inference tensors have no version to detect changes by
            return with_shared(torch.from_numpy(flat), split)

    def _plain(self, ticket: RunLookup, rows: Floats) -> tuple[Floats, Inverse, Offsets]:
        """Return rows, positions in them, and each feature's first position; one position per sample.

        Features with other numbers of ids are pooled, and their vectors are appended to the rows.
        """
        [inverse], spans, runs = ticket.lookups.inverses, ticket.lookups.spans, ticket.runs
        starts = np.array([spans[name].start for name in runs.order], np.int64)
        tables, places, end, among = [rows], [inverse], len(inverse), len(rows)
        for number, name in enumerate(runs.order):
            jagged = runs.shared[name] if name in runs.shared else runs.own[name]
            if jagged.single:
                continue
            _, start, stop = spans[name]
            bag = Bag(inverse, start, stop, jagged.offsets, jagged.weights, self._embeddings.mode(name))
            tables.append(np.empty((bag.size, rows.shape[1]), np.float32))
            pool_into(rows, [bag], tables[-1][:, np.newaxis])
            places.append(np.arange(among, among + bag.size, dtype=np.int32))
            starts[number] = end
            among, end = among + bag.size, end + bag.size
        if len(tables) == 1:
            return rows, inverse, starts
        return np.concatenate(tables), np.concatenate(places), starts

    def _layout(self, runs: Runs, dim: int) -> tuple[Flags, Flags]:
        """Return masks of the shared features, and of the shared columns of `flat`."""
        key = frozenset(runs.shared), runs.shared_numbers.tobytes()
        if key not in self._layouts:
            self._layouts.clear()  # clients choose the shared features, and rarely change the choice
            features = np.array([name in runs.shared for name in runs.order], np.bool_)
            self._layouts[key] = features, np.append(np.repeat(features, dim), runs.shared_numbers)
        return self._layouts[key]


@compiled(nogil=True, error_model="numpy", boundscheck=False)
def _lay_out(
    rows: Floats, places: tuple[Inverse, Offsets, Flags], run: Offsets, numbers: Floats, out: Floats
) -> None:
    """Write the concatenated rows of some features, then numbers, for each sample.

    Args:
        rows: float32[n, dim].
        places: positions of all ids in `rows`; each feature's first position; whether the feature has one
            position per run.
        run: the run of each sample.
        numbers: float32[size, numbers].
        out: float32[size, features * dim + numbers].
    """
    inverse, starts, shared = places
    dim, width = rows.shape[1], len(starts) * rows.shape[1]
    for n in range(len(out)):
        for f in range(len(starts)):
            row = inverse[starts[f] + (run[n] if shared[f] else n)]
            for k in range(dim):
                out[n, f * dim + k] = rows[row, k]
        for k in range(numbers.shape[1]):
            out[n, width + k] = numbers[n, k]
