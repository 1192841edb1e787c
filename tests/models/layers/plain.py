"""PyTorch's own layers with the weights of satrap's."""

from __future__ import annotations

import torch
from torch import nn

from satrap.models.layers.transformer import TransformerBlock


def plain(block: TransformerBlock) -> nn.TransformerEncoderLayer:
    """PyTorch's block with the same weights."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
    pairs = [
        (layer.self_attn.in_proj_weight, block.project.weight),
        (layer.self_attn.in_proj_bias, block.project.bias),
        (layer.self_attn.out_proj.weight, block.out.weight),
        (layer.self_attn.out_proj.bias, block.out.bias),
        (layer.linear1.weight, block.up.weight),
        (layer.linear1.bias, block.up.bias),
        (layer.linear2.weight, block.down.weight),
        (layer.linear2.bias, block.down.bias),
    ]
    with torch.no_grad():
        for theirs, ours in pairs:
            theirs.copy_(ours)
    return layer
