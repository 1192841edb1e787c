"""The same work in PyTorch, FBGEMM's CPU tables and a plain dict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import satrap
from benchmarks.store.limits import StepLimit
from benchmarks.store.operations import OPTIMIZERS, filled
from benchmarks.store.workload import (
    FEATURES,
    SAMPLES,
    Batch,
    Methods,
    batches,
    interleaved,
    scramble,
    show,
    summary,
)
from satrap.batch import Jagged
from satrap.embedding import EmbeddingPlan, Embeddings
from satrap.exchange import LocalExchange
from satrap.exchange.protocol import StepVerdict
from satrap.runtime.finite_gradients import all_finite
from satrap.store import Shard, distinct, gather_features, sum_features

N = FEATURES * SAMPLES
SATRAP = "satrap rowwise_adagrad"
Floats = npt.NDArray[np.float32]
Step = Callable[[int], None]


def zeros(rows: int, dim: int) -> torch.Tensor:
    """Return zeros in large pages, as in the store: page sizes are not part of the comparison."""
    from satrap.store.memory.reserve import Reserved

    reserved = Reserved(4 * rows * dim + (2 << 20))
    array = reserved.array(np.float32, rows * dim)
    array[::1024] = 0
    tensor = torch.from_numpy(array.reshape(rows, dim))
    tensor.reserved = reserved  # type: ignore[attr-defined]
    return tensor


def dedup(rows: int, skew: str, repeats: int) -> dict[str, Any]:
    """Return ns per id for computing unique ids with inverse."""
    work = batches(rows, skew, 8)
    methods: Methods = {
        "np.unique": lambda i: np.unique(work[i].ids, return_inverse=True),
        "torch.unique": lambda i: torch.unique(torch.from_numpy(work[i].flat), return_inverse=True),
        "distinct": lambda i: distinct(work[i].ids, work[i].splits),
        "distinct, one table": lambda i: distinct(work[i].ids, work[i].splits[[0, -1]]),
    }
    seconds = interleaved(methods, len(work), repeats)
    figures = summary(seconds, N, dict.fromkeys(["distinct", "distinct, one table"], "np.unique"))
    show(f"dedup of {N} ids, {skew}, ns per id", figures)
    return figures


def whole_step(dim: int, rows: int, skew: str, threads: int, repeats: int) -> dict[str, Any]:
    """Return ms of the whole embedding step: forward to [4096, 26, dim], backward, exact update."""
    torch.set_num_threads(threads)
    work = batches(rows, skew, 8)
    gradient = torch.randn(SAMPLES, FEATURES, dim) * 1e-3
    shard = filled(dim, rows, OPTIMIZERS["rowwise_adagrad"], threads)
    methods: dict[str, Any] = {"limit step": StepLimit(shard, work, gradient.numpy(), threads)}
    methods[SATRAP] = _store_calls(shard, work, gradient.numpy())
    methods["satrap, as the trainer does it"] = _trainer(shard, dim, work, gradient)
    methods |= _torch(dim, rows, work, gradient)
    methods |= _fbgemm(dim, rows, work, gradient)
    seconds = interleaved(methods, len(work), repeats, threads=threads)
    figures = summary(seconds, N, {**dict.fromkeys(methods, SATRAP), SATRAP: "limit step"})
    for name, times in seconds.items():
        figures[name]["ms"] = round(float(np.median(times)) * 1e3, 2)
    show(f"whole step dim {dim} {skew} threads {threads}, ns per id", figures)
    return figures


def _store_calls(shard: Shard, work: list[Batch], gradient: Floats) -> Step:
    """Return the step with the store's public calls."""

    def step(i: int) -> None:
        unique, splits, inverse = distinct(work[i].ids, work[i].splits)
        rows, slots = shard.lookup_slots(0, unique, splits)
        gather_features(rows, inverse, FEATURES)
        sums, finite = sum_features(gradient, inverse, len(unique))
        shard.update_group(0, unique, splits, sums, slots=slots, checked=finite)

    return step


def _trainer(shard: Shard, dim: int, work: list[Batch], gradient: torch.Tensor) -> Step:
    """Return the step with the calls of the training loop: ticket, exchange, autograd, exchange."""
    schema = satrap.Schema(
        labels=["clicked"], features={f"f{t}": satrap.Categorical(dim=dim) for t in range(FEATURES)}
    )
    exchange = LocalExchange(shard)
    plan = EmbeddingPlan(schema, exchange.groups)
    embeddings = Embeddings(plan, torch.device("cpu"))
    read = [
        satrap.Batch(SAMPLES, {f"f{t}": Jagged(ids) for t, ids in enumerate(np.split(b.ids, FEATURES))})
        for b in work
    ]

    def step(i: int) -> None:
        ticket = plan.ticket(read[i])
        lookup = exchange.lookup(ticket.requests, create=True)
        rows = embeddings.rows(lookup.result())
        [(_, block)] = embeddings.embed(ticket, rows).blocks
        block.backward(gradient)
        verdict = StepVerdict(all_finite(rows), lambda: True)
        exchange.apply(lookup, embeddings.gradients(rows), lr_scale=1.0, verdict=verdict)
        exchange.flush()

    return step


def _torch(dim: int, rows: int, work: Any, gradient: torch.Tensor) -> dict[str, Any]:
    flat = [torch.from_numpy(b.flat) for b in work]
    flat_gradient = gradient.transpose(0, 1).reshape(-1, dim).contiguous()
    offsets = torch.arange(N + 1)
    methods = {}
    for name, kind in (("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad)):
        bag = torch.nn.EmbeddingBag(
            rows, dim, mode="sum", sparse=True, include_last_offset=True, _weight=zeros(rows, dim)
        )
        optimizer = kind(bag.parameters(), lr=1e-3)

        def step(i: int, bag: Any = bag, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            bag(flat[i], offsets).backward(flat_gradient)
            optimizer.step()

        methods[f"torch EmbeddingBag {name}"] = step
    return methods


def _fbgemm(dim: int, rows: int, work: Any, gradient: torch.Tensor) -> dict[str, Any]:
    """Return FBGEMM's steps; none if it is not installed (`fbgemm-gpu-cpu`, in the matching version)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import fbgemm_gpu.split_table_batched_embeddings_ops_training as ops
            from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
            from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        print(f"FBGEMM is skipped: {type(error).__name__}: {error}")
        return {}
    tables = ops.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows // FEATURES, dim, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)] * FEATURES,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=1e-3,
        weights_precision=SparseType.FP32,
        pooling_mode=PoolingMode.SUM,
    )
    local = [torch.from_numpy(b.local) for b in work]
    offsets, flat = torch.arange(N + 1), gradient.reshape(SAMPLES, -1).contiguous()
    return {"fbgemm rowwise_adagrad": lambda i: tables(local[i], offsets).backward(flat)}


def plain_dict(dim: int, rows: int, repeats: int) -> dict[str, Any]:
    """Return ns per id of reading rows from a dict of arrays, and from the store, at a small size."""
    shard = filled(dim, rows, OPTIMIZERS["sgd"])
    work = batches(rows, "zipf", 4)
    ids = [b.unique[:2000] for b in work]
    splits = [np.minimum(b.unique_splits, 2000) for b in work]
    everything = scramble(np.arange(rows // FEATURES * FEATURES))
    table = {int(key): np.zeros(dim, np.float32) for key in everything}
    methods: Methods = {
        "dict": lambda i: np.stack([table[key] for key in ids[i].tolist()]),
        "lookup": lambda i: shard.lookup_group(0, ids[i], splits[i]),
    }
    figures = summary(interleaved(methods, 4, repeats), 2000, {"lookup": "dict"})
    show(f"requests of 2,000 ids, dim {dim}, {rows} rows", figures)
    return figures
