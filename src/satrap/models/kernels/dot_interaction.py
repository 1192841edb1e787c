"""The dot products of all pairs of a sample's vectors, and their gradients, each in one kernel.

A program computes some samples, one after another, and writes the results of its own samples alone; no result
is read. So programs cannot collide, in whatever order they run. The last program may compute the last sample
again, and writes the same numbers. Within a program, an element is written by one thread, or by several that
hold copies of the same number. The sums are in a fixed order, so two runs are equal to the bit.
"""

from __future__ import annotations

import warnings
from functools import cache
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

SAMPLES = 4
"""Samples of a program."""


class VectorShape(NamedTuple):
    """The vectors of a sample: their number, their dim, and 1 if the first is not in the block, else 0."""

    fields: int
    dim: int
    first: int


class ProductTile(NamedTuple):
    """The samples of a program, and the sizes of its products of matrices.

    Args:
        samples: samples of a program.
        fields: all fields, padded to a power of two.
        others: fields that `gradients` sums over.
        columns: columns of the vectors, a power of two.
        precision: of products of float32, "ieee" or "tf32".
    """

    samples: int
    fields: int
    others: int
    columns: int
    precision: str


@triton.jit
def vectors_of(
    block: tl.tensor, sample: tl.tensor, field: tl.tensor, column: tl.tensor, SHAPE: tl.constexpr
) -> tl.tensor:
    """Return a sample's numbers of fields [n, 1] and columns [1, m], as [n, m]; zero if not in the block."""
    of = block + sample * ((SHAPE.fields - SHAPE.first) * SHAPE.dim)
    inside = (field >= SHAPE.first) & (field < SHAPE.fields) & (column < SHAPE.dim)
    return tl.load(of + ((field - SHAPE.first) * SHAPE.dim + column), mask=inside, other=0)


@triton.jit
def products(
    block: tl.tensor,
    first: tl.tensor,
    out: tl.tensor,
    size: int,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Write the first vector, if it is apart, and after it the products of all pairs of vectors.

    The matrix of all products is computed, some columns of the vectors at a time; half of it is written.
    """
    OWN: tl.constexpr = SHAPE.dim * SHAPE.first
    PADDED: tl.constexpr = TILE.fields  # lists take constants, not numbers
    field = tl.arange(0, PADDED)[:, None]
    other = tl.arange(0, PADDED)[None, :]
    for s in range(TILE.samples):
        sample = tl.minimum(tl.program_id(0).to(tl.int64) * TILE.samples + s, size - 1)
        to = out + sample * (OWN + SHAPE.fields * (SHAPE.fields - 1) // 2)
        total = tl.zeros([PADDED, PADDED], tl.float32)
        for start in range(0, SHAPE.dim, TILE.columns):
            column = start + tl.arange(0, TILE.columns)[None, :]
            x = vectors_of(block, sample, field, column, SHAPE).to(out.dtype.element_ty)
            if SHAPE.first:
                leading = tl.load(first + sample * SHAPE.dim + column, mask=column < SHAPE.dim, other=0)
                tl.store(to + column, leading, mask=column < SHAPE.dim)
                x = tl.where(field == 0, leading, x)
            total = tl.dot(x, tl.trans(x), total, input_precision=TILE.precision)
        pair = OWN + field * (field - 1) // 2 + other
        tl.store(to + pair, total.to(out.dtype.element_ty), mask=(other < field) & (field < SHAPE.fields))


@triton.jit
def gradients(
    block: tl.tensor,
    first: tl.tensor,
    grad: tl.tensor,
    block_grad: tl.tensor,
    first_grad: tl.tensor,
    size: int,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Write the gradients of the vectors: the symmetric matrix of the products' gradients times the vectors.

    Some columns are computed at a time, as a sum over some fields at a time.
    """
    OWN: tl.constexpr = SHAPE.dim * SHAPE.first
    PADDED: tl.constexpr = TILE.fields
    COLUMNS: tl.constexpr = TILE.columns
    field = tl.arange(0, PADDED)[:, None]
    for s in range(TILE.samples):
        sample = tl.minimum(tl.program_id(0).to(tl.int64) * TILE.samples + s, size - 1)
        of = grad + sample * (OWN + SHAPE.fields * (SHAPE.fields - 1) // 2)
        for start in range(0, SHAPE.dim, COLUMNS):
            column = start + tl.arange(0, COLUMNS)[None, :]
            if SHAPE.first:
                leading = tl.load(first + sample * SHAPE.dim + column, mask=column < SHAPE.dim, other=0)
            total = tl.zeros([PADDED, COLUMNS], tl.float32)
            for begin in range(0, PADDED, TILE.others):
                other = begin + tl.arange(0, TILE.others)
                high, low = tl.maximum(field, other[None, :]), tl.minimum(field, other[None, :])
                pair = OWN + high * (high - 1) // 2 + low
                g = tl.load(of + pair, mask=(low < high) & (high < SHAPE.fields), other=0)
                x = vectors_of(block, sample, other[:, None], column, SHAPE).to(g.dtype)
                if SHAPE.first:
                    x = tl.where(other[:, None] == 0, leading, x)
                total = tl.dot(g, x, total, input_precision=TILE.precision)
            if SHAPE.first:
                passed = tl.load(of + column, mask=column < SHAPE.dim, other=0).to(tl.float32)
                to = first_grad + sample * SHAPE.dim + (field * SHAPE.dim + column)  # of field 0
                leading_grad = (total + passed).to(first_grad.dtype.element_ty)
                tl.store(to, leading_grad, mask=(field == 0) & (column < SHAPE.dim))
            to = block_grad + sample * ((SHAPE.fields - SHAPE.first) * SHAPE.dim)
            inside = (field >= SHAPE.first) & (field < SHAPE.fields) & (column < SHAPE.dim)
            block_rows = to + ((field - SHAPE.first) * SHAPE.dim + column)
            tl.store(block_rows, total.to(block_grad.dtype.element_ty), mask=inside)


TYPES = {torch.float32, torch.bfloat16, torch.float16}


def suits(block: Tensor, first: Tensor | None, dtype: torch.dtype) -> bool:
    """Return whether `dot_interaction` supports the shapes, types and device of its arguments."""
    fields, dim = block.shape[1] + (first is not None), block.shape[2]
    if first is not None and first.dtype != dtype:  # the layer's result has the wider type
        return False
    return 2 <= fields <= 64 and 16 <= dim <= 256 and {block.dtype, dtype} <= TYPES and works(block.device)


@torch.compiler.assume_constant_result
def works(device: torch.device) -> bool:
    """Return whether a device runs kernels; warn if it could, but compiling them fails."""
    return _tried(device)


@cache
def _tried(device: torch.device) -> bool:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):  # no bfloat16
        return False
    try:
        dot_interaction(torch.zeros(1, 2, 16, device=device), None, torch.float32)
    except (RuntimeError, OSError, CalledProcessError, TritonError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        text = f"kernels do not work on {device}, so networks are slower: {reason}"[:200]
        warnings.warn(f"{text}; install a C compiler, which Triton needs", RuntimeWarning, stacklevel=2)
        return False
    return True


def options(shape: VectorShape, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of a launch, for factors of a type."""
    fields = max(16, triton.next_power_of_2(shape.fields))
    exact = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    # Without tensor cores, a thread holds all columns of its factors in registers.
    columns = 16 if exact else min(triton.next_power_of_2(shape.dim), 128)
    return {
        "SHAPE": shape,
        "TILE": ProductTile(SAMPLES, fields, 16 if exact else fields, columns, "ieee" if exact else "tf32"),
        "num_warps": max(1, fields * max(fields, columns) // 1024),
        "num_stages": 1 if exact else 2,  # two: loads the next sample's vectors early
    }


def launch(kernel: Any, tensors: list[Tensor], arguments: dict[str, Any]) -> None:
    """Run a kernel for the samples of its tensors, on their device."""
    size = len(tensors[0])
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        kernel[(triton.cdiv(size, arguments["TILE"].samples),)](*tensors, size, **arguments)


@torch.library.custom_op("satrap::dot_interaction", mutates_args=())
def dot_interaction(block: Tensor, first: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the products of all pairs of vectors, after the first vector if it is given.

    `torch.compile` calls it as it is. Its gradients have no gradients.

    Args:
        block: [size, fields, dim], contiguous, of one of `TYPES`.
        first: [size, dim] of type `dtype`, contiguous: one more field, before the others; or None.
        dtype: one of `TYPES`. Factors are rounded to it, and so are products after a sum in float32.

    Returns:
        `dtype`[size, F * (F - 1) / 2] of all F fields; [size, dim + F * (F - 1) / 2] with `first`.
    """
    out: Tensor = _empty(block, first, dtype)
    leading = block if first is None else first
    launch(products, [block, leading, out], options(_shape(block, first), dtype))
    return out


@torch.library.custom_op("satrap::dot_interaction_backward", mutates_args=())
def backward(grad: Tensor, block: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of `block` and `first`, of their types, from the result's gradient, contiguous.

    Without `first`, its gradient is empty.
    """
    block_grad, first_grad = _empty_gradients(grad, block, first)
    tensors = [block, block if first is None else first, grad, block_grad, first_grad]
    launch(gradients, tensors, options(_shape(block, first), grad.dtype))
    return block_grad, first_grad


@dot_interaction.register_fake
def _empty(block: Tensor, first: Tensor | None, dtype: torch.dtype) -> Tensor:
    shape = _shape(block, first)
    width = shape.dim * shape.first + shape.fields * (shape.fields - 1) // 2
    return block.new_empty(len(block), width, dtype=dtype)


@backward.register_fake
def _empty_gradients(_: Tensor, block: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(block), block.new_empty(0) if first is None else torch.empty_like(first)


def _shape(block: Tensor, first: Tensor | None) -> VectorShape:
    return VectorShape(block.shape[1] + (first is not None), block.shape[2], int(first is not None))


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
    block, first = ctx.saved_tensors
    block_grad, first_grad = backward(grad.contiguous(), block, first)
    return block_grad, None if first is None else first_grad, None


dot_interaction.register_autograd(_backward, setup_context=_save)
