"""Turns rows from the exchange into the input tensors of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch, EmbeddedBatch, JaggedRows, Offsets, exact
from satrap.embedding.lazy import Block, LazyBlocks, LazyFeatures
from satrap.embedding.plan import BatchLookup, EmbeddingPlan
from satrap.embedding.pooling import Bag, Mode, merge_runs, pool_beside, pool_features
from satrap.schema import Schema


class Embeddings:
    """Builds `EmbeddedBatch` objects on the model's device, from the rows of a plan's lookups.

    Attributes:
        whole: whether one table group has all features, and they are pooled on the CPU.
        as_tensors: whether the exchange takes gradients as tensors on the device.
    """

    as_tensors = False

    def __init__(self, plan: EmbeddingPlan, device: torch.device) -> None:
        self.device, self._plan = device, plan
        self._in_order = {group for group, names in plan.pooled if names == plan.features_of(group)}
        self.whole = device.type == "cpu" and len(plan.pooled) == 1 and not plan.jagged
        self._learns = [not group.frozen for group in plan.groups]

    def rows(self, found: Sequence[Any]) -> list[Tensor]:
        """Return the looked-up rows, arrays or tensors, as tensors on the device.

        Each request has one float32[n, dim], an autograd leaf unless the tables are frozen. Without requests
        there are none.
        """
        if not found:
            return []
        return [
            torch.as_tensor(rows, device=self.device).requires_grad_(learns)
            for rows, learns in zip(found, self._learns, strict=True)
        ]

    def gradients(self, rows: Sequence[Tensor]) -> list[Any]:
        """Return the gradient of each leaf of `rows`; zeros for leaves that the model did not use.

        Each is an array float32[n, dim], or a tensor on the device if `as_tensors`.
        """
        gradients = [torch.zeros_like(r) if r.grad is None else r.grad for r in rows]
        return gradients if self.as_tensors else [g.cpu().numpy() for g in gradients]

    def embed(self, ticket: BatchLookup, rows: Sequence[Tensor]) -> EmbeddedBatch:
        """Return the model's input; rows are pooled on first access.

        Args:
            ticket: the batch and its inverse.
            rows: float32[unique, dim] per request, as `rows` returns them.

        Returns:
            The input, with one block float32[size, features, dim] per table group. On the CPU, if one group
            has all features, rows are pooled directly into the result of `flat`.
        """
        batch, schema, numbers = ticket.batch, self._plan.schema, self._to_device(ticket.batch.numeric)
        numeric = torch.zeros(batch.size, 0, device=self.device) if numbers is None else numbers
        blocks = LazyBlocks(partial(self.blocks, ticket, rows))
        ragged = Ragged(batch, schema, self.device)
        return EmbeddedBatch(
            size=batch.size,
            embeddings=LazyFeatures(
                self._present(ticket, list(schema.categorical)),
                blocks,
                partial(self._jagged_of, ticket, rows, ragged),
            ),
            numeric=numeric,
            blocks=blocks,
            labels=self._to_device(batch.labels, np.float32),
            label_mask=self._to_device(batch.label_mask),
            weights=self._to_device(batch.weights),
            exact_labels=self._to_device(batch.labels) if exact(batch.labels) else None,
            source=batch,
            beside=partial(self._beside, ticket, rows, numeric)
            if self.whole and len(batch.ids) >= len(schema.categorical)
            else None,
            events=ragged.events(),
            candidates=None if ticket.candidates is None else self.embed(ticket.candidates, rows),
        )

    def blocks(self, ticket: BatchLookup, rows: Sequence[Tensor]) -> list[Block]:
        """Return the pooled features of each table group, float32[size, features, dim]."""
        return [
            (names, pool_features(rows[group], self._bags(ticket, group, names)))
            for group, every in self._plan.pooled
            if (names := self._present(ticket, every))
        ]

    def _jagged_of(
        self, ticket: BatchLookup, rows: Sequence[Tensor], ragged: Ragged
    ) -> dict[str, JaggedRows]:
        names = self._present(ticket, self._plan.jagged)
        return {name: ragged.rows(name, self.unpooled(ticket, name, rows)) for name in names}

    def _present(self, ticket: BatchLookup, names: Sequence[str]) -> tuple[str, ...]:
        """Leave out features that the samples lack: candidates have only features of an item."""
        if len(ticket.batch.ids) >= len(self._plan.schema.categorical):
            return tuple(names)
        return tuple(name for name in names if name in ticket.batch.ids)

    def _beside(self, ticket: BatchLookup, rows: Sequence[Tensor], numeric: Tensor) -> Tensor:
        [(group, names)] = self._plan.pooled
        return pool_beside(rows[group], self._bags(ticket, group, names), numeric)

    def _bags(self, ticket: BatchLookup, group: int, names: Sequence[str]) -> list[Bag]:
        if ticket.plain[group] and group in self._in_order:
            # the usual batch: the result of `merge_runs`, without computing it
            inverses = ticket.inverses[group]
            return [Bag(inverses, 0, len(inverses), features=len(names))]
        return merge_runs([self._bag(ticket, name) for name in names])

    def _to_device(self, array: npt.NDArray[Any] | None, kind: type[Any] | None = None) -> Tensor | None:
        if array is None:
            return None
        return torch.from_numpy(array.astype(kind or array.dtype, copy=False)).to(self.device)

    def _bag(self, ticket: BatchLookup, name: str) -> Bag:
        span, jagged = ticket.spans[name], ticket.batch.ids[name]
        if name in ticket.pooled:
            return Bag(ticket.inverses[span.group], span.start, span.stop)
        return Bag(
            inverses=ticket.inverses[span.group],
            start=span.start,
            stop=span.stop,
            offsets=jagged.offsets,
            weights=jagged.weights,
            mode=self.mode(name),
        )

    def mode(self, name: str) -> Mode:
        """Return the pooling mode of a feature."""
        pooling = self._plan.schema.categorical[name].pooling
        return "sum" if pooling == "none" else pooling  # unused if rows are not pooled

    def unpooled(self, ticket: BatchLookup, name: str, rows: Sequence[Tensor]) -> Tensor:
        """Return the rows of a feature that is not pooled, times their weights: float32[ids, dim]."""
        bag = self._bag(ticket, name)
        index = torch.from_numpy(bag.inverse).to(self.device)
        values = torch.nn.functional.embedding(index, rows[ticket.spans[name].group])
        if bag.weights is not None:
            values = values * torch.from_numpy(bag.weights).to(self.device).unsqueeze(1)
        return values


class Ragged:
    """Per-id and per-event values of a batch, with offsets, as tensors on a device.

    Features of a sequence share the tensor of the offsets.
    """

    def __init__(self, batch: Batch, schema: Schema, device: torch.device) -> None:
        self._batch, self._device = batch, device
        self._offsets: dict[str, tuple[Tensor, Offsets]] = {}
        self._first = {
            name: group.ids[0] for group in schema.sequences.values() for name in (*group.ids, *group.numbers)
        }

    def rows(self, feature: str, values: Tensor) -> JaggedRows:
        """Return values of a feature, float32[n, dim], with its offsets."""
        first = self._first.get(feature, feature)
        if first not in self._offsets:
            offsets = self._batch.ids[first].offsets
            host = np.arange(self._batch.size + 1) if offsets is None else offsets
            self._offsets[first] = torch.from_numpy(host).to(self._device), host
        return JaggedRows(values, *self._offsets[first])

    def events(self) -> dict[str, JaggedRows]:
        """Return the numbers of events, float32[n, 1] of each feature."""
        return {
            name: self.rows(name, torch.from_numpy(jagged.values).to(self._device).unsqueeze(1))
            for name, jagged in self._batch.events.items()
        }
