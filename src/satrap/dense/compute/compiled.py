"""Compiles a network's blocks with `torch.compile`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from satrap.dense.compute.support import check_pytorch
from satrap.dense.memory.activation_checkpoint import blocks
from satrap.errors import ConfigError

PYTORCH = "2.13"
"""The oldest version in which blocks do not share one limit on recompilations."""


def compile_blocks(model: nn.Module, device: torch.device) -> None:
    """Compile each block of a network with `torch.compile`, when it first runs.

    Blocks are defined as in `satrap.dense.memory.activation_checkpoint`. The code between blocks stays
    Python, so a model may do anything there that cannot be compiled. Results are equal up to rounding,
    dropout included. A block is compiled once for all batch sizes above one and once for a batch of one
    sample, and each again without gradients.

    Args:
        model: the network; the `forward` of its blocks is replaced. The names of its weights do not change.
        device: the network's device.

    Raises:
        ConfigError: PyTorch is too old, the network has no blocks, or there is no compiler (on the CPU, a C++
            compiler).
    """
    check_pytorch(
        PYTORCH, "compile", "older versions may recompile a network of several blocks again and again"
    )
    targets = blocks(model, "compile")
    _try_out(device)
    translated: Any = torch.compile  # its annotations lack an argument
    for block in targets:
        block.forward = translated(
            block.forward, dynamic=True, isolate_recompiles=True, options={"fallback_random": True}
        )


def _try_out(device: torch.device) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch about itself, once imported
        try:
            torch.compile(_doubled)(torch.ones(2, device=device))
        except RuntimeError as error:  # every error of `torch.compile` is a RuntimeError
            raise ConfigError(
                f"compile does not work here: {str(error).splitlines()[0]}"[:200],
                why=f"PyTorch compiles a network on {device.type} with a compiler of this machine",
                fix="install g++ (on a CUDA device, Triton), or remove compile",
            ) from error


def _doubled(x: Tensor) -> Tensor:
    return x * 2
