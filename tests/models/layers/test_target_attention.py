"""Scores of events equal the formula, computed on whole concatenated inputs."""

from __future__ import annotations

import torch
from torch import nn

from satrap.models.layers.target_attention import ComparisonLinear, Dice, TargetScore

OFFSETS = torch.tensor([0, 3, 3, 5])
SAMPLE = torch.tensor([0, 0, 0, 2, 2])


def test_the_first_layer_equals_one_of_all_four_parts() -> None:
    torch.manual_seed(0)
    layer = ComparisonLinear(4, 3, 5).double()
    nn.init.normal_(layer.bias)
    shapes = [(3, 4), (5, 4), (5, 1), (5, 2)]
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    target, events, *context = given
    each = target[SAMPLE]
    whole = torch.cat([each, events, each - events, each * events, *context], dim=1)
    expected = whole @ layer.weight.T + layer.bias
    found = layer(target, events, context, OFFSETS)
    torch.testing.assert_close(found, expected)
    tensors, upstream = [*given, layer.weight, layer.bias], torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(x, tensors, upstream) for x in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_its_weights_start_as_in_xavier_linear() -> None:
    torch.manual_seed(0)
    layer = ComparisonLinear(50, 20, 80)
    bound = (6 / (220 + 80)) ** 0.5
    assert bound * 0.95 < layer.weight.abs().max() <= bound
    assert not layer.bias.any()


def test_an_event_has_one_score() -> None:
    score = TargetScore(4, 0, [6, 5], "relu")
    assert [layer.out_features for layer in score.layers] == [5, 1]
    assert score(torch.randn(3, 4), torch.randn(5, 4), [], OFFSETS).shape == (5, 1)


def test_dice_is_its_formula_in_training_and_evaluation() -> None:
    torch.manual_seed(0)
    layer, x = Dice(3), torch.randn(50, 3) * 2 + 1
    nn.init.normal_(layer.slope)
    p = torch.sigmoid((x - x.mean(0)) / (x.var(0, correction=0) + 1e-8).sqrt())
    torch.testing.assert_close(layer(x), p * x + (1 - p) * layer.slope * x)
    torch.testing.assert_close(layer.norm.running_mean, 0.1 * x.mean(0))
    layer.eval()
    p = torch.sigmoid((x - layer.norm.running_mean) / (layer.norm.running_var + 1e-8).sqrt())
    torch.testing.assert_close(layer(x), p * x + (1 - p) * layer.slope * x)
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]))
