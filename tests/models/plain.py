"""Interactions written out pair by pair, and random weights to compare them with."""

from __future__ import annotations

import torch


def randomise(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))


def explicit_pairs(vectors):
    return torch.stack(
        [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(vectors.shape[1]) for j in range(i)], dim=1
    )
