"""The blocks of Wukong and RankMixer against their formulas, written per sample."""

import torch
from torch.nn import functional as F

from satrap.models.layers.blocks import MixerBlock, WukongLayer


def test_a_wukong_layer_equals_its_formula():
    torch.manual_seed(0)
    layer, x = WukongLayer(fields=3, dim=4, fmb=2, lcb=5, rank=6, hidden=[7]), torch.randn(8, 3, 4)
    out = layer(x)
    y = layer.mix.weight  # [rank, fields]
    for sample in range(8):
        one = x[sample]
        machine = F.layer_norm((one @ (one.T @ y.T)).reshape(-1), (18,))
        hidden = torch.relu(layer.fmb[1].weight @ machine + layer.fmb[1].bias)
        made = (layer.fmb[-1].weight @ hidden + layer.fmb[-1].bias).reshape(2, 4)
        summed = torch.cat([made, layer.lcb.weight @ one]) + layer.residual.weight @ one
        torch.testing.assert_close(out[sample], F.layer_norm(summed, (4,)))


def test_a_wukong_layer_of_equal_fields_adds_its_input():
    torch.manual_seed(0)
    layer, x = WukongLayer(fields=4, dim=3, fmb=2, lcb=2, rank=2, hidden=[]), torch.randn(5, 4, 3)
    assert layer.residual is None
    torch.nn.init.zeros_(layer.fmb[-1].weight)
    torch.nn.init.zeros_(layer.lcb.weight)
    torch.testing.assert_close(layer(x), F.layer_norm(x, (3,)))


def test_a_mixer_block_equals_its_formula():
    torch.manual_seed(0)
    block, x = MixerBlock(tokens=3, width=6, expansion=2), torch.randn(5, 3, 6)
    for p in block.parameters():
        torch.nn.init.normal_(p)
    out, n = block(x), block.networks
    for sample in range(5):
        one = x[sample]
        mixed = torch.stack([torch.cat([one[t, 2 * h : 2 * h + 2] for t in range(3)]) for h in range(3)])
        s = F.layer_norm(mixed + one, (6,), block.norms[0].weight, block.norms[0].bias)
        for t in range(3):
            inner = F.gelu(s[t] @ n.up[t] + n.up_bias[t, 0])
            after = inner @ n.down[t] + n.down_bias[t, 0] + s[t]
            expected = F.layer_norm(after, (6,), block.norms[1].weight, block.norms[1].bias)
            torch.testing.assert_close(out[sample, t], expected)
