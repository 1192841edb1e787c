"""Arguments that kernels of rows share: pointers in tuples, and facts that are compiled in.

A field named after a tensor is its pointer in a kernel. A kernel takes counts from device memory, so it can
be captured in a CUDA graph: its grid covers the capacity, and programs without work end at once. No field may
have the name of an attribute of Triton's tuples, such as `values`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Memory(NamedTuple):
    """The memory of rows.

    Attributes:
        weights: float32, or int16 that hold the bits of 16-bit weights; of row 0.
        state: float32, the state vectors of row 0.
        scalars: float32[slots], the scalar state of each row; unused if rows have none.
    """

    weights: Any
    state: Any
    scalars: Any


class Shape(NamedTuple):
    """The layout of a row, compiled in.

    Attributes:
        dim: weights per row.
        columns: the power of two >= dim: columns of a tile.
        format: FLOAT32, BFLOAT16 or FLOAT16 of `formats`.
        weights: elements of `Memory.weights` from one row to the next.
        state: float32 from one row to the next.
        vector: float32 from one state vector of a row to the next.
        vectors: state vectors per row: 0, 1 or 2.
        scalar: whether a row has a scalar state.
    """

    dim: int
    columns: int
    format: int
    weights: int
    state: int
    vector: int
    vectors: int
    scalar: bool


class Request(NamedTuple):
    """The distinct ids of a request; see `satrap.store.gpu.slab.DistinctRuns`.

    Attributes:
        slots: int32[capacity], the slot of each distinct id; -1: no row.
        ids: int64[capacity], the distinct ids.
        tables: int16 or int32[capacity], their tables; unused if the group has one.
        runs: int32[1], the number of distinct ids.
        starts: int32[capacity + 1], the first sorted position of each run, then the number of positions.
        order: int32[capacity], the position of each sorted position.
        inverse: int32[capacity], the distinct id of each position.
    """

    slots: Any
    ids: Any
    tables: Any
    runs: Any
    starts: Any
    order: Any
    inverse: Any


class FirstRows(NamedTuple):
    """First rows.

    Attributes:
        seeds, scales: int64[tables], float32[tables].
        state: float32[2], first values of state vectors and of the scalar.
    """

    seeds: Any
    scales: Any
    state: Any


class Block(NamedTuple):
    """A block [samples, features, dim] to write to.

    Attributes:
        target: float32, bfloat16 or float16.
        stride: numbers from one sample to the next.
        samples, features: its size.
        chosen: int32, laid out like `target`, for pooling by the maximum; unused otherwise.
    """

    target: Any
    stride: Any
    samples: Any
    features: Any
    chosen: Any


class Reading(NamedTuple):
    """How rows are read, compiled in.

    Attributes:
        tables: whether the group has several tables.
        initial: whether ids without a row get their initial weights; else zeros.
        mode: SUM, MEAN, SQRTN or MAX of `rows`, for pooling.
        weights: whether positions have weights, for pooling.
    """

    tables: bool
    initial: bool
    mode: int = 0
    weights: bool = False


class SampleBags(NamedTuple):
    """The positions of the samples of a feature.

    Attributes:
        offsets: int32[samples + 1], bounds of the samples in `inverse`.
        inverse: int32, the distinct id of each position of this feature.
        weights: float32, one per position; unused if all are 1.
        start: position in the request of the first position of this feature.
    """

    offsets: Any
    inverse: Any
    weights: Any
    start: Any


class Gradients(NamedTuple):
    """Gradients by position of the request, or by sample and feature.

    Attributes:
        rows: float32, bfloat16 or float16 rows of dim numbers.
        batch, features: without `source`, position p has row `p % batch * features + p // batch`.
        source: int32[capacity], the row of each position; `-1 - row` if the sample is pooled by its maximum.
        scale: float32[capacity], the factor of each position.
        chosen: int32[rows, dim], the position whose weight is the maximum.
    """

    rows: Any
    batch: Any
    features: Any
    source: Any
    scale: Any
    chosen: Any


class Route(NamedTuple):
    """Which fields of `Gradients` are used, compiled in."""

    source: bool = False
    scale: bool = False
    chosen: bool = False


class Numbers(NamedTuple):
    """Numbers of an optimizer step that may change between two replays of a graph.

    Attributes:
        floats: float32[16]; `optimizers` lists them.
        rate: float64[1], the learning rate.
        corrections: float64[steps, 2], the divisors of Adam's moments.
        noise: int64[1], decides how 16-bit weights are rounded.
        last: the last step of `corrections`.
    """

    floats: Any
    rate: Any
    corrections: Any
    noise: Any
    last: Any


class StepRule(NamedTuple):
    """The optimizer, compiled in.

    Attributes:
        kind: SGD, MOMENTUM ... of `optimizers`.
        shaped: whether there is weight decay or clipping.
        clipped, bounded: whether gradients are clipped, and weights bounded.
    """

    kind: int
    shaped: bool
    clipped: bool
    bounded: bool
