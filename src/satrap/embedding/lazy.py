"""Pooled features, computed on first access."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from satrap.batch import JaggedRows

Block = tuple[tuple[str, ...], Tensor]
"""Names of features, and float32[size, features, dim] of them."""


class LazyBlocks(Sequence[Block]):
    """Blocks of pooled features, which `make` computes on first access."""

    def __init__(self, make: Callable[[], Sequence[Block]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Sequence[Block]:
        return self._make()

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]


class LazyFeatures(Mapping[str, Tensor | JaggedRows]):
    """Feature -> its embedding, from blocks computed on first access.

    Args:
        order: names of the features, in the order of the mapping.
        blocks: blocks of the pooled features.
        jagged: returns the features that are not pooled.
    """

    def __init__(
        self, order: Collection[str], blocks: LazyBlocks, jagged: Callable[[], Mapping[str, JaggedRows]]
    ) -> None:
        self._order, self._blocks, self._jagged = order, blocks, jagged

    @cached_property
    def _found(self) -> dict[str, Tensor | JaggedRows]:
        embeddings: dict[str, Tensor | JaggedRows] = dict(self._jagged())
        for names, block in self._blocks:
            embeddings.update(zip(names, block.unbind(1), strict=True))
        return embeddings

    def __getitem__(self, name: str) -> Tensor | JaggedRows:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)
