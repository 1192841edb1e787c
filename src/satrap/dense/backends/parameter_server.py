"""The step of `async`: the store also holds the network's weights, and workers do not synchronize."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from satrap import optim
from satrap.dense.backends.data_parallel import DataParallelBackend
from satrap.dense.backends.protocol import Rows
from satrap.dense.comm.workers import Workers
from satrap.dense.memory.optimizer_offload import MakeOptimizer
from satrap.errors import ConfigError
from satrap.exchange import Exchange, LocalExchange, LookupRequest, TableGroup
from satrap.schema import Table
from satrap.store import Shard

DENSE_TABLE = "satrap.dense"
"""Reserved table: row i holds the i-th `dim` elements of all trainable parameters, in order."""

ROW = 64
"""Elements per row, or the next width that no other table has: its rows then form their own group."""


class RemoteStep(DataParallelBackend):
    """Pulls the weights along with the rows of a batch, and pushes both gradients together.

    The store runs the given optimizer row by row: `torch.optim.SGD`, `Adagrad`, `Adam` and `AdamW` mean the
    same there, except that a missing gradient counts as zeros. Like any row in `async`, the weights of a step
    are as old as its lookup, and pushes of other workers arrive at any time: this is the classic parameter
    server.

    It takes the arguments of `DataParallelBackend`. Each worker takes its steps, clips its gradients and
    scales its loss independently of the others.

    Raises:
        ConfigError: the store does not support the optimizer.
    """

    def _set_up(self, make: MakeOptimizer | None) -> None:
        self.partners, self._tables = Workers(), list[Table]()
        self._rule = None if make is None or not self.parameters else row_optimizer(make(self.parameters))

    def tables(self, widths: Collection[int]) -> list[Table]:
        """Return the reserved table."""
        self._dim = next(dim for dim in range(ROW, ROW + len(widths) + 1) if dim not in widths)
        self._rows = -(-sum(p.numel() for p in self.parameters) // self._dim)
        if self._rule is not None:
            self._tables = [Table(DENSE_TABLE, dim=self._dim, optimizer=self._rule, initial_scale=0.0)]
        return self._tables

    def attach(self, groups: Sequence[TableGroup]) -> None:
        """Find the reserved table among the exchange's groups."""
        for group in groups:
            if DENSE_TABLE in group.tables:
                ids = np.arange(self._rows, dtype=np.uint64)
                self.requests = [LookupRequest(group.index, ids, np.array([0, self._rows], np.int64))]

    def seed(self, exchange: Exchange) -> None:
        """Write the present weights into the store, with fresh optimizer state.

        They are loaded, because a lookup would skip rows that the recipe's admission rejects.
        """
        rows = _rows([p.detach() for p in self.parameters], self._rows, self._dim)
        with closing(LocalExchange(Shard(self._tables, seed=0))) as fresh:
            fresh.lookup([replace(request, group=0) for request in self.requests], create=True).result()
            for table, chunk in fresh.rows.cut(still=True):
                exchange.rows.load(table, replace(chunk, weights=rows[chunk.ids.astype(np.int64)]))

    def settle(self, exchange: Exchange) -> None:
        """Pull the newest weights, and copy the buffers of the first copy."""
        self.pull(exchange.lookup(self.requests, create=False).result() if self.requests else ())
        super().settle(exchange)

    def pull(self, rows: Sequence[Any]) -> None:
        """Copy pulled weights, float32[rows, dim], into the parameters."""
        if not rows:
            return
        flat = torch.as_tensor(rows[0]).view(-1)
        start = 0
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.copy_(flat[start : start + parameter.numel()].view_as(parameter))
                start += parameter.numel()

    def push(self) -> list[Rows]:
        """Return the gradients as rows."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return [_rows(gradients, self._rows, self._dim)] if self.requests else []


def _rows(tensors: Sequence[Tensor], rows: int, dim: int) -> Rows:
    out: Rows = np.zeros(rows * dim, np.float32)
    flat = torch.cat([t.float().reshape(-1) for t in tensors]).cpu().numpy()
    out[: len(flat)] = flat
    return out.reshape(rows, dim)


def row_optimizer(optimizer: torch.optim.Optimizer) -> optim.Optimizer:
    """Return the store's equivalent of a `torch.optim` optimizer.

    Raises:
        ConfigError: the store has no equivalent.
    """
    [settings, *others] = optimizer.param_groups
    lr = float(settings["lr"])
    for off in ("amsgrad", "dampening", "lr_decay", "maximize"):
        if settings.get(off):
            raise _untranslatable(optimizer, f"has {off}={settings[off]}")
    if others:
        raise _untranslatable(optimizer, "has several parameter groups")

    def of(*names: str, **renamed: str) -> dict[str, Any]:
        return {n: settings[n] for n in names} | {n: settings[theirs] for n, theirs in renamed.items()}

    kind = type(optimizer)
    if kind is torch.optim.SGD:
        return optim.SGD(lr=lr, **of("momentum", "nesterov", "weight_decay"))
    if kind is torch.optim.Adagrad:
        return optim.Adagrad(
            lr=lr, **of("eps", "weight_decay", initial_accumulator="initial_accumulator_value")
        )
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        chosen = optim.AdamW if kind is torch.optim.AdamW else optim.Adam
        return chosen(lr=lr, **{**of("eps", "weight_decay"), "betas": tuple(settings["betas"])})
    raise _untranslatable(optimizer, "is not supported")


def _untranslatable(optimizer: torch.optim.Optimizer, what: str) -> ConfigError:
    return ConfigError(
        f"in async mode the store runs the dense optimizer, and {type(optimizer).__name__} {what}",
        fix="use SGD, Adagrad, Adam or AdamW with plain settings, or another mode",
    )
