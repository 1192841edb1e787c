"""Checks whether a network, and the installed PyTorch, support a feature."""

from __future__ import annotations

import torch
from torch import nn
from torch.torch_version import TorchVersion

from satrap.errors import ConfigError

BATCH_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LazyBatchNorm1d,
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
)
"""All batch normalizations of PyTorch; their common base is private."""


def check_no_batch_norm(model: nn.Module, feature: str, why: str, instead: str) -> None:
    """Raise `ConfigError` if a network has batch normalization, which a feature does not support.

    Args:
        model: the network.
        feature: as the user named it.
        why: what batch normalization would compute.
        instead: a setting without the feature.
    """
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORMS):
            raise ConfigError(
                f"{feature} cannot be combined with batch normalization: {name}",
                why=why,
                fix=f"{instead}, or use the model without batch_norm",
            )


def check_pytorch(version: str, feature: str, why: str) -> None:
    """Raise `ConfigError` if PyTorch is older than a version that a feature needs."""
    if TorchVersion(torch.__version__) < version:
        raise ConfigError(
            f"{feature} needs PyTorch {version} or newer, but {torch.__version__} is installed",
            why=why,
            fix=f"pip install 'torch>={version}', or remove {feature}",
        )
