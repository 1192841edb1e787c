"""Mixtures of experts against sums written out."""

import pytest
import torch
from torch import nn

from satrap.models.layers.common import mlp
from satrap.models.layers.linear import GroupedLinear
from satrap.models.multitask.experts import Experts, Level, MixtureGate, Towers
from satrap.schema import Label


@pytest.mark.parametrize("hidden", [[], [4], [5, 4], [7, 5, 4]], ids=str)
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_experts_are_networks_that_know_nothing_of_each_other(
    count: int, batch_norm: bool, hidden: list[int]
) -> None:
    torch.manual_seed(1)
    experts = Experts(count, 6, hidden, dropout=0.0, batch_norm=batch_norm)
    torch.manual_seed(1)
    networks = [mlp(6, hidden, batch_norm=batch_norm)[0] for _ in range(count)]
    grouped = [layer for layer in experts.modules() if isinstance(layer, GroupedLinear)]
    layers = zip(*([one for one in net if isinstance(one, nn.Linear)] for net in networks), strict=True)
    with torch.no_grad():
        for group, same in zip(grouped, layers if count > 1 else (), strict=True):
            group.weight.copy_(torch.cat([layer.weight for layer in same]))
            group.bias.copy_(torch.cat([layer.bias for layer in same]))
    both = [torch.randn(9, 6, requires_grad=True)]
    both.append(both[0].detach().requires_grad_())
    found, expected = experts(both[0]), torch.stack([one(both[1]) for one in networks], 1)
    assert found.shape == (9, count, experts.width)
    torch.testing.assert_close(found, expected)
    for outputs in (found, expected):
        outputs.square().sum().backward()
    torch.testing.assert_close(both[0].grad, both[1].grad)
    per_layer = zip(*([p.grad for p in one.parameters()] for one in networks), strict=True)
    gradients = [torch.cat(same) if not batch_norm else torch.stack(same) for same in per_layer]
    own = [p.grad for p in experts.parameters()]
    total, of_networks = (sum(g.square().sum() for g in each) for each in (own, gradients))
    torch.testing.assert_close(total, of_networks)
    if not batch_norm:
        torch.testing.assert_close(own, gradients)
    with torch.no_grad():
        torch.testing.assert_close(
            experts.eval()(both[0]), torch.stack([n.eval()(both[0]) for n in networks], 1)
        )


def test_dropout_draws_for_each_expert() -> None:
    torch.manual_seed(1)
    experts = Experts(2, 6, [400, 300], dropout=0.5, batch_norm=False)
    zeros = (experts(torch.randn(5, 6)) == 0).float()
    assert ((zeros[:, 0] - zeros[:, 1]).abs().mean() > 0.2).all()
    assert zeros.mean() > 0.6  # half of them, and what ReLU makes zero
    assert (experts.eval()(torch.randn(5, 6)) == 0).float().mean() < 0.6


def test_a_gate_mixes_by_softmax():
    torch.manual_seed(0)
    gate, x, outputs = MixtureGate(4, 3), torch.randn(5, 4), torch.randn(5, 3, 2)
    for sample in range(5):
        scores = torch.exp(gate.scores.weight @ x[sample])
        expected = sum(scores[i] / scores.sum() * outputs[sample, i] for i in range(3))
        torch.testing.assert_close(gate(x, outputs)[sample], expected)


def test_one_expert_needs_no_gate():
    gate, outputs = MixtureGate(4, 1), torch.randn(5, 1, 2)
    assert not list(gate.parameters())
    assert torch.equal(gate(torch.randn(5, 4), outputs), outputs[:, 0])


def test_a_level_shows_labels_their_own_and_shared_experts_only():
    torch.manual_seed(0)
    make = [Experts(n, 4, [3], dropout=0.0, batch_norm=False) for n in (2, 1, 2)]
    level = Level(make, 4, last=False)
    streams = [torch.randn(6, 4, requires_grad=True) for _ in range(3)]
    first, second, shared = level(streams)

    def mixed(x, gate, *experts):
        outputs = torch.cat([some(s) for some, s in experts], 1)
        return (torch.softmax(x @ gate.scores.weight.T, 1).unsqueeze(2) * outputs).sum(1)

    pairs = list(zip(make, streams, strict=True))
    torch.testing.assert_close(first, mixed(streams[0], level.gates[0], pairs[0], pairs[2]))
    torch.testing.assert_close(second, mixed(streams[1], level.gates[1], pairs[1], pairs[2]))
    torch.testing.assert_close(shared, mixed(streams[2], level.shared, *pairs))
    gradients = torch.autograd.grad(first.sum(), streams, retain_graph=True, allow_unused=True)
    assert gradients[1] is None  # another label's stream has no way in


def test_towers_read_their_own_input():
    torch.manual_seed(0)
    towers = Towers([Label(name="a"), Label(name="b")], 3, [4], dropout=0.0, batch_norm=False)
    inputs = [torch.randn(5, 3), torch.randn(5, 3)]
    logits = towers(inputs)
    for k, (tower, x) in enumerate(zip(towers.towers, inputs, strict=True)):
        hidden = torch.relu(x @ tower[0].weight.T + tower[0].bias)
        torch.testing.assert_close(logits[:, k], (hidden @ tower[-1].weight.T + tower[-1].bias)[:, 0])
