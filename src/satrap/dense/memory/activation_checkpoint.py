"""Activation checkpointing: recomputes a block's activations in the backward pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from satrap.dense.compute.support import check_no_batch_norm
from satrap.errors import ConfigError


def checkpoint_activations(model: nn.Module) -> None:
    """Let the blocks of a network drop their activations and recompute them in the backward pass.

    A block is a module with child modules in an `nn.Sequential` or `nn.ModuleList`, or a segment of an
    `nn.Sequential` of plain layers: about sqrt(n) segments for n layers, as in Chen et al., "Training Deep
    Nets with Sublinear Memory Cost", arXiv 1604.06174. Its inputs are kept, and its forward pass runs again
    with the same random numbers, so results are equal to the bit.

    Args:
        model: the network; the `forward` of its blocks is replaced. The names of its weights do not change.

    Raises:
        ConfigError: the network has batch normalization, which would count a batch twice, or no blocks.
    """
    check_no_batch_norm(
        model,
        "checkpoint_activations",
        "batch normalization would count each batch twice",
        "remove checkpoint_activations",
    )
    for block in blocks(model, "checkpoint_activations"):
        forward: Callable[..., Any] = partial(checkpoint, block.forward, use_reentrant=False)
        if isinstance(block, nn.Sequential):
            forward = partial(_run, _segments(list(block)))
        block.forward = forward


def blocks(model: nn.Module, feature: str) -> list[nn.Module]:
    """Return the blocks that a network computes one after another.

    A block is an `nn.Sequential` of plain layers, or a module with child modules in an `nn.Sequential` or
    `nn.ModuleList`. Raises `ConfigError` if the network has none, which `feature` needs.
    """
    targets = list(_blocks(model))
    if not targets:
        raise ConfigError(
            f"{feature} found no blocks in {type(model).__name__}",
            why="a block is a module in an nn.Sequential or nn.ModuleList",
            fix=f"remove {feature}, or put the layers into an nn.Sequential or nn.ModuleList",
        )
    return targets


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential) and len(module) and not any(map(_composite, module)):
        yield module
        return
    listed = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        if listed and _composite(child) and not isinstance(child, nn.Sequential | nn.ModuleList):
            yield child
        else:
            yield from _blocks(child)


def _composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _segments(modules: Sequence[nn.Module]) -> list[Sequence[nn.Module]]:
    """Cut a stack of n layers (modules with weights) into about sqrt(n) segments."""
    layers = [i for i, module in enumerate(modules) if next(module.parameters(), None) is not None]
    each = segment_length(len(layers))
    starts = [0, *layers[each::each], len(modules)]
    return [modules[a:b] for a, b in itertools.pairwise(starts)]


def segment_length(layers: int) -> int:
    """Return the number of layers per segment of a stack: about the square root."""
    return max(1, math.ceil(math.sqrt(layers) - 1e-9))


def _run(segments: Sequence[Sequence[nn.Module]], x: Tensor) -> Tensor:
    for segment in segments:
        x = checkpoint(_one, segment, x, use_reentrant=False)
    return x


def _one(segment: Sequence[nn.Module], x: Tensor) -> Tensor:
    for module in segment:
        x = module(x)
    return x
