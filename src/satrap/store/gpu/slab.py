"""Rows of one kind, contiguous in the memory of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from satrap.errors import ConfigError, StoreError
from satrap.store.gpu.budget import part_bytes
from satrap.store.gpu.numbers import StepNumbers
from satrap.store.kernels.formats import BFloat16, Float16, Float32
from satrap.store.row_spec import RowSpec

LARGEST_DIM = 1024
"""Most weights of a row: a tile of the kernels holds a whole row."""
WINDOW = 64
"""Sorted positions between two cuts of long runs, as `WINDOW` of `kernels.gradients`."""
MODES = ("sum", "mean", "sqrtn", "max")
"""Poolings, by their number in `kernels.rows`."""
_FORMATS = (Float32, BFloat16, Float16)
_FLOATS = 2048
"""Numbers of a tile on a GPU; half of it if several tiles are held, or a tile has many rows."""
_INTERPRETED_FLOATS = 1 << 13
"""The same in Triton's interpreter, where a program costs a millisecond whatever its size."""
_FEW = 2048
"""Programs below which smaller tiles keep more of the device busy."""
_STORED = {4: torch.float32, 2: torch.int16}
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}  # multiplication and addition round apart


class DistinctRuns(Protocol):
    """The distinct ids of a request, as runs of equal ids in sorted order; all tensors are on the device."""

    @property
    def ids(self) -> Tensor:
        """The distinct ids, int64[capacity]."""

    @property
    def tables(self) -> Tensor:
        """Their tables, int16 or int32[capacity]; undefined if the group has one."""

    @property
    def runs(self) -> Tensor:
        """Their number, int32[1]."""

    @property
    def starts(self) -> Tensor:
        """The first sorted position of each, then the number of positions, int32[capacity + 1]."""

    @property
    def order(self) -> Tensor:
        """The position of each sorted position, int32[capacity]; equal ids keep their order."""

    @property
    def inverse(self) -> Tensor:
        """The distinct id of each position, int32[capacity]."""


@dataclass(frozen=True, slots=True)
class DeviceBag:
    """The positions of one feature in a request; as `satrap.embedding.pooling.Bag`, on the device.

    Args:
        start, stop: first position, and one past the last.
        offsets: int32[samples + 1] bounds of the samples, from 0 to `stop - start`.
        mode: one of `MODES`, as `satrap.store.pool`.
        weights: float32[stop - start], one per position; None: all 1.
    """

    start: int
    stop: int
    offsets: Tensor
    mode: str = "sum"
    weights: Tensor | None = None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the gradient of each position comes from; `DeviceSlab.trace` writes it.

    Args:
        rows: int32[capacity], the row of the gradients; `-1 - row` for pooling by the maximum.
        scale: float32[capacity], the factor; None: 1.
        chosen: int32[rows, dim], positions that `DeviceSlab.pool` chose; None: no feature has the mode "max".
    """

    rows: Tensor
    scale: Tensor | None = None
    chosen: Tensor | None = None


class DeviceSlab:
    """Memory for `slots` rows on a device, and the kernels that read and change them.

    A row is `[weights | state vectors]`, each part padded to 16 bytes; scalars are apart. Dims of 1 to 1024
    are taken; kernels are fastest with a power of two from 8 to 256, and read 16 bytes at once with a
    multiple of 4 (8 with 16-bit weights). Methods only enqueue work on the current stream, read no count on
    the host, and can be captured in a CUDA graph after one call with the same shapes. In Triton's
    interpreter, the device is the CPU.

    Args:
        kind: the rows.
        slots: number of rows, >= 1.
        device: where the memory is.

    Attributes:
        rows: uint8[slots, stride].
        scalars: float32[slots], the scalar state of each row; one number if rows have none.
        numbers: learning rate and noise of the next step.

    Raises:
        ConfigError: rows have too many weights for the kernels.
        StoreError: the device lacks the memory.
    """

    def __init__(self, kind: RowSpec, slots: int, device: torch.device) -> None:
        from satrap.store.gpu.kernels import arguments, gradients, rows  # only here is Triton needed

        self.kind, self.slots, self.device = kind, slots, device
        self._arguments, self._rows, self._gradients = arguments, rows, gradients
        plan, initial = kind.plan, kind.initial
        if kind.dim > LARGEST_DIM:
            raise ConfigError(
                f"rows in the memory of a GPU have at most {LARGEST_DIM} weights, not {kind.dim}",
                fix=f"reduce dim to {LARGEST_DIM}, or keep the rows in RAM",
            )
        item = 4 if plan.format is Float32 else 2
        weights, vector = part_bytes(plan, kind.dim)
        stride = weights + vector * (plan.layout.state // kind.dim)
        self.shape = arguments.Shape(
            dim=kind.dim,
            columns=1 << (kind.dim - 1).bit_length(),
            format=_FORMATS.index(plan.format),
            weights=stride // item,
            state=stride // 4,
            vector=vector // 4,
            vectors=plan.layout.state // kind.dim,
            scalar=plan.layout.scalar,
        )
        try:
            self.rows = torch.empty(slots, stride, dtype=torch.uint8, device=device)
            self.scalars = torch.empty(slots if plan.layout.scalar else 1, device=device)
        except torch.OutOfMemoryError as error:
            raise StoreError(
                f"{device} has no room for {slots} rows of {stride} bytes", fix="reduce embedding.memory"
            ) from error
        flat = self.rows.view(-1)
        state = flat.view(torch.float32)[weights // 4 if self.shape.vectors else 0 :]
        self._memory = arguments.Memory(flat.view(_STORED[item]), state, self.scalars)
        start = torch.tensor([initial.state, initial.scalar], dtype=torch.float32)
        seeds, scales = (
            torch.from_numpy(x).to(device) for x in (initial.seeds.view(np.int64), initial.scales)
        )
        self._initial = arguments.FirstRows(seeds, scales, start.to(device))
        self.numbers = StepNumbers(plan, device)
        self._rule = arguments.StepRule(
            self.numbers.kind,
            plan.shaping is not None,
            plan.shaping is not None and bool(np.isfinite(plan.shaping.clip)),
            plan.bound is not None,
        )
        self._noise = torch.tensor([kind.noise.astype(np.int64)], device=device)
        self._pieces: dict[int, Tensor] = {}  # never replaced: captured graphs hold their addresses

    @property
    def bytes(self) -> int:
        """Bytes of the rows and their scalars."""
        return self.rows.nbytes + self.scalars.nbytes

    def initialize(self, runs: DistinctRuns, slots: Tensor, fresh: Tensor, count: Tensor) -> None:
        """Write the first rows of new ids to their slots.

        Args:
            runs, slots: the distinct ids and their slots, int32[capacity].
            fresh: int32[capacity], which of the distinct ids are new; slot -1 is skipped.
            count: int32[1], how many of `fresh` count.
        """
        arguments = self._memory, self._request(runs, slots), self._initial, fresh, count
        self._launch(self._rows.initialize, len(fresh), *arguments, TABLES=len(self.kind.tables) > 1)

    def gather(self, runs: DistinctRuns, slots: Tensor, out: Tensor, *, initial: bool = False) -> None:
        """Write the weights of distinct id r to `out[r]`, float32, bfloat16 or float16[capacity, dim].

        Args:
            runs, slots: the distinct ids and their slots, int32[capacity].
            out: rows beyond the number of distinct ids are unchanged.
            initial: ids without a slot get their initial weights, else zeros; default False, which is faster.
        """
        assert len(out) >= len(runs.ids)
        lookup = self._lookup(initial)
        arguments = self._memory, self._request(runs, slots), self._initial, self._block(out)
        self._launch(self._rows.gather, len(out), *arguments, heavy=initial, LOOKUP=lookup)

    def gather_positions(
        self, runs: DistinctRuns, slots: Tensor, out: Tensor, *, start: int = 0, initial: bool = False
    ) -> None:
        """Write the weights of position `start + f * samples + b` to `out[b, f]`, [samples, features, dim].

        Args:
            runs, slots, initial: as for `gather`.
            out: float32, bfloat16 or float16; samples may have any stride.
            start: the first position; default 0. Positions that the request does not have give zeros.
        """
        n = out.shape[0] * out.shape[1]
        arguments = self._memory, self._request(runs, slots), self._initial, self._block(out), start
        lookup = self._lookup(initial)
        self._launch(self._rows.gather_positions, n, *arguments, heavy=initial, LOOKUP=lookup)

    def pool(
        self,
        runs: DistinctRuns,
        slots: Tensor,
        bag: DeviceBag,
        out: Tensor,
        *,
        chosen: Tensor | None = None,
        initial: bool = False,
    ) -> None:
        """Write the pooled weights of each sample of a feature to `out[b]`, [samples, dim], in one kernel.

        Args:
            runs, slots, initial: as for `gather`.
            bag: the positions of the feature.
            out: float32, bfloat16 or float16; samples may have any stride, as in `block[:, f]`.
            chosen: int32 with the shape and strides of `out`: with mode "max", the position of each value in
                the request, -1 for an empty sample. Other modes ignore it.
        """
        kernel = self._rows.pool if bag.mode != "max" else self._rows.pool_max
        block = self._block(out, chosen)
        arguments = self._memory, self._request(runs, slots), self._initial, self._bags(bag, runs.inverse)
        lookup = self._lookup(initial, bag)
        heavy = initial or bag.mode == "max"
        self._launch(kernel, bag.samples, *arguments, block, heavy=heavy, LOOKUP=lookup)

    def trace(self, bag: DeviceBag, sources: Sources, feature: int, features: int) -> None:
        """Write the sources of the gradients of a feature's positions, for `step`.

        The gradients are [samples, features, dim], and this is feature number `feature`. `sources.scale` is
        required. A feature with one id per sample has the offsets 0, 1, 2 ...
        """
        bags = self._bags(bag, sources.rows)
        lookup = self._arguments.Reading(False, False, MODES.index(bag.mode), bag.weights is not None)
        lanes = 1024 if self.device.type == "cpu" else 128
        self._rows.trace[(-(-bag.samples // lanes),)](
            bags,
            sources.rows,
            sources.scale,
            bag.samples,
            feature,
            features,
            LOOKUP=lookup,
            R=lanes,
            **_EXACT,
        )

    def step(
        self, runs: DistinctRuns, slots: Tensor, gradients: Tensor, sources: Sources | None = None
    ) -> None:
        """Sum the gradients of each distinct id, and take one optimizer step of its row; skip slot -1.

        The sums have a fixed order, see `kernels.gradients`. `numbers.set` sets the learning rate and noise.

        Args:
            runs, slots: the distinct ids and their slots, int32[capacity].
            gradients: float32, bfloat16 or float16, C-contiguous. Without `sources`, [positions, dim], or
                [samples, features, dim] with position `f * samples + b` at [b, f]. With `sources`, any shape
                [..., dim].
            sources: the row of each position in `gradients`.
        """
        assert gradients.is_contiguous()
        assert gradients.shape[-1] == self.kind.dim
        capacity, features = len(runs.order), gradients.shape[1] if gradients.ndim == 3 else 1
        blank = sources or Sources(runs.order)
        inputs = self._arguments.Gradients(
            gradients,
            gradients.shape[0],
            features,
            blank.rows,
            self.scalars if blank.scale is None else blank.scale,
            runs.order if blank.chosen is None else blank.chosen,
        )
        route = self._arguments.Route(sources is not None, blank.scale is not None, blank.chosen is not None)
        request, windows = self._request(runs, slots), -(-capacity // WINDOW)
        numbers = self._numbers()
        if capacity > WINDOW:
            if capacity not in self._pieces:
                self._pieces[capacity] = torch.empty(2 * windows, self.kind.dim, device=self.device)
            pieces = self._pieces[capacity]
            summed = request, inputs, pieces
            self._launch(self._gradients.sum_pieces, 2 * windows, *summed, heavy=route.chosen, ROUTE=route)
            warps = max(4, self.shape.columns // 64)
            self._gradients.step_long[(windows,)](
                self._memory,
                request,
                pieces,
                numbers,
                SHAPE=self.shape,
                RULE=self._rule,
                num_warps=warps,
                **_EXACT,
            )
        arguments, heavy = (self._memory, request, inputs, numbers), self.shape.vectors > 1
        self._launch(
            self._gradients.step_short, capacity, *arguments, heavy=heavy, RULE=self._rule, ROUTE=route
        )

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights float32[n, dim], state float32[n, width]) of slots, int32[n]; zeros for slot -1."""
        n, plan = len(slots), self.kind.plan
        weights = torch.zeros(n, self.kind.dim, device=self.device)
        state = torch.zeros(n, plan.width, device=self.device)
        if n:
            self._launch(self._rows.read, n, self._memory, slots, n, weights, state)
        return weights, state

    def write(self, ids: Tensor, slots: Tensor, weights: Tensor, state: Tensor) -> None:
        """Write weights float32[n, dim], rounded as on the CPU, and state float32[n, width] to slots.

        Args:
            ids: int64[n].
            slots: int32[n], different; -1 is skipped.
            weights, state: C-contiguous.
        """
        assert weights.is_contiguous()
        assert state.is_contiguous()
        if n := len(slots):
            rows = slots, ids, self._noise
            self._launch(self._rows.write, n, self._memory, rows, weights, state, n)

    def _launch(self, kernel: Any, n: int, *arguments: Any, heavy: bool = False, **constants: Any) -> None:
        """Run a kernel over n rows or samples; `heavy`: a program holds several tiles."""
        columns = self.shape.columns
        if self.device.type == "cpu":
            rows, warps = max(1, min(_INTERPRETED_FLOATS // columns, 1 << (n - 1).bit_length())), 1
        else:
            rows, warps = tile(columns, n, heavy)
        grid = (-(-n // rows),)
        kernel[grid](*arguments, SHAPE=self.shape, R=rows, num_warps=warps, **constants, **_EXACT)

    def _request(self, runs: DistinctRuns, slots: Tensor) -> Any:
        r = runs
        return self._arguments.Request(slots, r.ids, r.tables, r.runs, r.starts, r.order, r.inverse)

    def _lookup(self, initial: bool, bag: DeviceBag | None = None) -> Any:
        tables = initial and len(self.kind.tables) > 1
        if bag is None:
            return self._arguments.Reading(tables, initial)
        return self._arguments.Reading(tables, initial, MODES.index(bag.mode), bag.weights is not None)

    def _block(self, out: Tensor, chosen: Tensor | None = None) -> Any:
        assert out[0].is_contiguous()
        assert chosen is None or chosen.stride() == out.stride()
        features = out.shape[1] if out.ndim == 3 else 1
        return self._arguments.Block(
            out, out.stride(0), out.shape[0], features, out if chosen is None else chosen
        )

    def _bags(self, bag: DeviceBag, inverse: Tensor) -> Any:
        weights = self.scalars if bag.weights is None else bag.weights
        return self._arguments.SampleBags(bag.offsets, inverse[bag.start : bag.stop], weights, bag.start)

    def _numbers(self) -> Any:
        n = self.numbers
        return self._arguments.Numbers(n.floats, n.rate, n.corrections, n.noise, len(n.corrections) - 1)


def tile(columns: int, n: int, heavy: bool = False) -> tuple[int, int]:
    """Return the rows, a power of two, and the warps of a program of a kernel over n rows on a GPU.

    Results do not depend on them. Few rows are given to more programs, of at least one warp with wide loads.
    """
    rows = max(1, (_FLOATS // 2 if heavy or columns <= 32 else _FLOATS) // columns)
    while rows * columns > 128 and rows > 1 and n < _FEW * rows:
        rows //= 2
    return rows, min(4, max(1, rows * columns // 128))
