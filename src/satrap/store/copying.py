"""Rows between their slots and arrays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from satrap.store.kernels import batch, export
from satrap.store.kernels import rows as row_kernels
from satrap.store.pooling import strided
from satrap.store.steps import Plan, Rows
from satrap.store.types import Floats, Ids, Inverse, address
from satrap.store.workers import Workers

NO_NOISE = np.uint64(0)
"""Seed of rounding where nothing is rounded."""


def gather(plan: Plan, rows: Rows, workers: Workers, slots: Inverse, out: Floats) -> None:
    """Write the weights of slots to float32[n, dim]; those of -1 stay as they are."""
    start, step = strided(out)

    def work(first: int, end: int) -> None:
        target = start + np.uint64(first) * step
        row_kernels.gather(
            plan.format(NO_NOISE), rows.base, rows.stride, slots[first:end], rows.dim, target, step
        )

    workers.run(workers.ranges(len(slots)), work)


def gather_features(
    plan: Plan, rows: Rows, workers: Workers, slots: Inverse, inverse: Inverse, features: int, out: Floats
) -> None:
    """Write the weights of `slots[inverse]`, all >= 0, to float32[batch, features, dim].

    `inverse` is int32[features * batch], feature after feature; threads share the features.
    """
    (start, step), each = strided(out), len(inverse) // features
    fmt, width = plan.format(NO_NOISE), np.uint64(4 * out.shape[2])

    def work(first: int, end: int) -> None:
        part, target = inverse[first * each : end * each], start + np.uint64(first) * width
        batch.gather_slots(
            fmt, rows.base, rows.stride, slots, part, end - first, rows.dim, target, step, len(inverse)
        )

    parts = min(features, len(workers.ranges(len(inverse))))
    cuts = [features * part // parts for part in range(parts + 1)]
    workers.run(list(pairwise(cuts)), work)


def read(plan: Plan, rows: Rows, workers: Workers, slots: Inverse) -> tuple[Floats, Floats]:
    """Return (weights float32[n, dim], state float32[n, width]) of slots; rows of -1 are anything."""
    weights = np.empty((len(slots), int(rows.dim)), np.float32)
    state = np.empty((len(slots), plan.width), np.float32)
    (to, step), (state_to, state_step) = strided(weights), (address(state), np.uint64(4 * plan.width))

    def work(first: int, end: int) -> None:
        i = np.uint64(first)
        export.read_rows(
            plan.format(NO_NOISE),
            rows.base,
            rows.stride,
            rows.scalars,
            slots[first:end],
            rows.dim,
            to + i * step,
            np.uint64(plan.layout.state),
            state_to + i * state_step,
            state_step,
        )

    workers.run(workers.ranges(len(slots)), work)
    return weights, state


def scatter(
    plan: Plan, noise: np.uint64, rows: Rows, ids: Ids, slots: Inverse, weights: Floats, state: Floats
) -> None:
    """Write weights and state to slots; `noise` seeds the rounding."""
    inner = np.ascontiguousarray(state[:, : plan.layout.state])
    row_kernels.scatter(
        plan.format(noise),
        rows.base,
        rows.stride,
        ids,
        slots,
        address(weights),
        rows.dim,
        address(inner),
        np.uint64(plan.layout.state),
    )
    if plan.layout.scalar:
        rows.scalars[slots] = state[:, -1]
