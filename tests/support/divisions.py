"""Tensors cut into boxes along every dimension, drawn at random."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

GROUPS = [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
Cuts = list[list[int]]


def numbers(shape: list[int], dtype: torch.dtype) -> Tensor:
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).mul(9).to(dtype)
    )


def boxes(cuts: Cuts) -> list[tuple[list[int], list[int]]]:
    """Where the cells of a grid begin and their sizes; `cuts` has the borders in each dimension."""
    sides = [list(itertools.pairwise(one)) for one in cuts]
    return [([a for a, _ in cell], [b - a for a, b in cell]) for cell in itertools.product(*sides)]


def sliced(whole: Tensor, start: list[int], size: list[int]) -> Tensor:
    for dim, (begin, count) in enumerate(zip(start, size, strict=True)):
        whole = whole.narrow(dim, begin, count)
    return whole


@st.composite
def divisions(draw: st.DrawFn) -> tuple[list[int], Cuts, Cuts]:
    shape = draw(st.lists(st.integers(0, 9), min_size=0, max_size=3))
    cuts = [
        [[0, *sorted(draw(st.lists(st.integers(0, size), max_size=3))), size] for size in shape]
        for _ in range(2)
    ]
    return shape, cuts[0], cuts[1]
