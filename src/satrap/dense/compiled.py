"""Lets PyTorch translate a network's blocks into machine code."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from satrap.dense.recompute import blocks
from satrap.errors import ConfigError

PYTORCH = "2.13"
"""The oldest version whose blocks do not share one limit for their translations."""


def compile_blocks(model: nn.Module, device: torch.device) -> None:
    """Let `torch.compile` translate each block of a network when it first computes.

    Blocks are those of `satrap.dense.recompute`. Everything between them stays Python, so a model may do
    there what cannot be translated. Results are equal up to rounding, dropout included. A block is translated
    once for all sizes of batches above one, for a batch of one sample, and each again without gradients.

    Args:
        model: the network; the `forward` of its blocks is replaced. Names of its weights stay as they are.
        device: where it is.

    Raises:
        ConfigError: an old PyTorch, no blocks, or nothing that translates: a C++ compiler on the CPU.
    """
    if TorchVersion(torch.__version__) < PYTORCH:
        raise ConfigError(
            f"compile needs PyTorch {PYTORCH}, and this is {torch.__version__}",
            why="with older versions, a network of several blocks may be translated again and again",
            fix=f"pip install 'torch>={PYTORCH}', or remove compile",
        )
    found = list(blocks(model))
    if not found:
        raise ConfigError(
            f"compile finds no blocks in {type(model).__name__}",
            why="a block is a module in an nn.Sequential or nn.ModuleList",
            fix="remove compile, or put the layers into one of these",
        )
    _try_out(device)
    translated: Any = torch.compile  # its annotations lack an argument
    for block in found:
        block.forward = translated(
            block.forward, dynamic=True, isolate_recompiles=True, options={"fallback_random": True}
        )


def _try_out(device: torch.device) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch about itself, once imported
        try:
            torch.compile(_doubled)(torch.ones(2, device=device))
        except RuntimeError as error:  # all errors of `torch.compile` are
            raise ConfigError(
                f"compile does not work here: {str(error).splitlines()[0]}"[:200],
                why=f"PyTorch translates a network on {device.type} by a compiler of this machine",
                fix="install g++, or on a CUDA device Triton; or remove compile",
            ) from error


def _doubled(x: Tensor) -> Tensor:
    return x * 2
