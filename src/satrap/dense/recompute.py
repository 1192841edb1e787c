"""Computes what a network's blocks need for their backward pass twice, instead of keeping it in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from satrap.errors import ConfigError

BatchNorm = nn.modules.batchnorm._BatchNorm


def checkpoint_activations(model: nn.Module) -> None:
    """Let the blocks of a network forget what they compute, until the backward pass needs it.

    A block is a module with modules of its own in an `nn.Sequential` or `nn.ModuleList`, or a segment of an
    `nn.Sequential` of plain layers: about the root of n segments of n layers, as in Chen et al., "Training
    Deep Nets with Sublinear Memory Cost", arXiv 1604.06174. Its inputs are kept, and its forward pass runs
    again with the same random numbers, so results are equal to the bit.

    Args:
        model: the network; the `forward` of its blocks is replaced. Names of its weights stay as they are.

    Raises:
        ConfigError: batch normalisation, which would count a batch twice, or no blocks.
    """
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm):
            raise ConfigError(
                f"checkpoint_activations does not go with batch normalisation: {name}",
                why="it would count each batch twice",
                fix="remove checkpoint_activations, or use the model without batch_norm",
            )
    found = list(blocks(model))
    if not found:
        raise ConfigError(
            f"checkpoint_activations finds no blocks in {type(model).__name__}",
            why="a block is a module in an nn.Sequential or nn.ModuleList",
            fix="remove checkpoint_activations, or put the layers into one of these",
        )
    for block in found:
        forward: Callable[..., Any] = partial(checkpoint, block.forward, use_reentrant=False)
        if isinstance(block, nn.Sequential):
            forward = partial(_run, _segments(list(block)))
        block.forward = forward


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield what a network computes one after another: each `nn.Sequential` of plain layers, and each module
    with modules of its own in an `nn.Sequential` or `nn.ModuleList`.
    """
    if isinstance(module, nn.Sequential) and len(module) and not any(map(_composite, module)):
        yield module
        return
    listed = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        if listed and _composite(child) and not isinstance(child, nn.Sequential | nn.ModuleList):
            yield child
        else:
            yield from blocks(child)


def _composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _segments(modules: Sequence[nn.Module]) -> list[Sequence[nn.Module]]:
    """Cut a stack before layers, which are modules with weights, into about the root of their number."""
    layers = [i for i, module in enumerate(modules) if next(module.parameters(), None) is not None]
    each = segment_length(len(layers))
    starts = [0, *layers[each::each], len(modules)]
    return [modules[a:b] for a, b in itertools.pairwise(starts)]


def segment_length(layers: int) -> int:
    """Return how many layers each segment of a stack of so many has: about the root."""
    return max(1, math.ceil(math.sqrt(layers) - 1e-9))


def _run(segments: Sequence[Sequence[nn.Module]], x: Tensor) -> Tensor:
    for segment in segments:
        x = checkpoint(_one, segment, x, use_reentrant=False)
    return x


def _one(segment: Sequence[nn.Module], x: Tensor) -> Tensor:
    for module in segment:
        x = module(x)
    return x
