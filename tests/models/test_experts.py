"""Mixtures of experts against sums written out."""

import torch

from satrap.models.experts import Experts, Gate, Level, Towers
from satrap.schema import Label


def test_a_gate_mixes_by_softmax():
    torch.manual_seed(0)
    gate, x, outputs = Gate(4, 3), torch.randn(5, 4), torch.randn(5, 3, 2)
    for sample in range(5):
        scores = torch.exp(gate.scores.weight @ x[sample])
        expected = sum(scores[i] / scores.sum() * outputs[sample, i] for i in range(3))
        torch.testing.assert_close(gate(x, outputs)[sample], expected)


def test_one_expert_needs_no_gate():
    gate, outputs = Gate(4, 1), torch.randn(5, 1, 2)
    assert not list(gate.parameters())
    assert torch.equal(gate(torch.randn(5, 4), outputs), outputs[:, 0])


def test_a_level_shows_labels_their_own_and_shared_experts_only():
    torch.manual_seed(0)
    make = [Experts(n, 4, [3], dropout=0.0, batch_norm=False) for n in (2, 1, 2)]
    level = Level(make, 4, last=False)
    streams = [torch.randn(6, 4, requires_grad=True) for _ in range(3)]
    first, second, shared = level(streams)

    def mixed(x, gate, *experts):
        outputs = torch.cat([torch.stack([e(s) for e in some.experts], 1) for some, s in experts], 1)
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
