"""Sides in one process: a plain loop with tables of FBGEMM, of PyTorch, or of satrap's store."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from benchmarks.collective.ranks import LR
from benchmarks.train_vs_pytorch.__main__ import network
from benchmarks.train_vs_pytorch.plain import SPARSE_OPTIMIZERS, Bags, Plain
from benchmarks.train_vs_pytorch.workload import NUM_CATEGORICAL, Samples, cardinalities, schema
from satrap.store import Shard, distinct, gather_features, sum_features

Fit = Callable[[Samples], object]


class Fused:
    """The optimizer of tables that change in the backward pass: nothing is left to do."""

    def zero_grad(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""


class FbgemmTables(nn.Module):
    """FBGEMM's CPU tables: pooled lookup, and row-wise Adagrad in the backward pass."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import fbgemm_gpu.split_table_batched_embeddings_ops_training as ops
            from fbgemm_gpu.split_embedding_configs import EmbOptimType
        host = (ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
        self.tables: Any = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(int(size), dim, *host) for size in cardinalities(rows)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LR,
            eps=1e-10,
        )
        self.tables.init_embedding_weights_uniform(-0.01, 0.01)

    def forward(self, ids: Tensor) -> Tensor:
        """Return float32[size, features, dim] from int64[size, features]."""
        size, features = ids.shape
        pooled: Tensor = self.tables(ids.t().contiguous().view(-1), torch.arange(ids.numel() + 1))
        return pooled.view(size, features, -1)


class StoreTables(nn.Module):
    """satrap's store by its public calls: unique ids, lookup, sums of gradients, row-wise Adagrad."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        optimizer = satrap.optim.RowWiseAdagrad(lr=LR)
        tables = [satrap.Table(f"C{i}", dim=dim, optimizer=optimizer) for i in range(NUM_CATEGORICAL)]
        self.shard = Shard(tables, seed=1, threads=1)
        self.reached = nn.Parameter(torch.zeros(1), requires_grad=True)  # so that autograd calls `backward`

    def forward(self, ids: Tensor) -> Tensor:
        """Return float32[size, features, dim] from int64[size, features]."""
        block: Tensor = _StoreStep.apply(self.reached, self.shard, ids)  # type: ignore[no-untyped-call]
        return block


class _StoreStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reached: Tensor, shard: Shard, ids: Tensor) -> Tensor:  # type: ignore[override]
        size, features = ids.shape
        flat = ids.t().contiguous().numpy().view(np.uint64).reshape(-1)
        unique, splits, inverse = distinct(flat, np.arange(features + 1, dtype=np.int64) * size)
        rows, slots = shard.lookup_slots(0, unique, splits)
        ctx.step = shard, unique, splits, inverse, slots
        return torch.from_numpy(gather_features(rows, inverse, features))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # type: ignore[override]
        shard, unique, splits, inverse, slots = ctx.step
        sums, finite = sum_features(gradient.numpy(), inverse, len(unique))
        shard.update_group(0, unique, splits, sums, slots=slots, checked=finite)
        return None, None, None


TABLES: dict[str, Callable[[int, int], nn.Module]] = {"fbgemm": FbgemmTables, "store": StoreTables}


def loop_side(options: argparse.Namespace) -> Fit:
    """Return a function that trains a plain loop; side "loop-fbgemm", "loop-store" or "loop-pytorch"."""
    torch.set_num_threads(1)
    described, tables = schema(options.dim), options.side.partition("-")[2]
    bags: nn.Module
    if tables == "pytorch":
        bags = Bags(cardinalities(options.rows), options.dim, "one_table")
        sparse: Any = SPARSE_OPTIMIZERS["adagrad"](list(bags.parameters()), LR)
    else:
        bags, sparse = TABLES[tables](options.rows, options.dim), Fused()
    plain = Plain(network(options.tower, described), described, bags, sparse=sparse, precision="float32")
    return lambda samples: plain.fit(samples, options.batch_size)


def tables_side(options: argparse.Namespace) -> Fit:
    """Return a function that only looks up and updates rows; side "tables-fbgemm" or "tables-store"."""
    torch.set_num_threads(1)
    bags = TABLES[options.side.partition("-")[2]](options.rows, options.dim)
    gradient = torch.randn(options.batch_size, NUM_CATEGORICAL, options.dim) * 1e-3

    def fit(samples: Samples) -> None:
        for ids in torch.from_numpy(samples.ids).split(options.batch_size):
            bags(ids).backward(gradient)

    return fit
