"""Parts of multi-task models: experts, gates that mix them, levels, and a tower per label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from satrap.models.layers.common import OutputLayer, check_whole, mlp
from satrap.models.layers.linear import GroupedLinear, XavierLinear
from satrap.schema import Label


class Experts(nn.Module):
    """MLPs of the same shape that read the same input.

    With `mesh.tensor`, each process has some of the experts, and all processes get the outputs of all
    experts. Every expert reads every sample, so samples are not routed to experts.

    Args:
        count: number of experts, at least 1.
        width: columns of the input.
        hidden: widths of the layers of each expert.
        dropout, batch_norm: as in `satrap.models.layers.common.mlp`.
    """

    def __init__(
        self, count: int, width: int, hidden: Sequence[int], *, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__()
        check_whole("the number of experts", count)
        made = [mlp(width, hidden, dropout=dropout, batch_norm=batch_norm) for _ in range(count)]
        self.count, self.width = count, made[0][1]
        stacks = zip(*(stack for stack, _ in made), strict=True)
        self.layers = nn.Sequential(*map(_for_each, stacks)) if count > 1 else made[0][0]
        self.tensor_plan = {"": "experts"} if count > 1 and hidden else None

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[size, count, last of hidden] from float32[size, width].

        A process with some of the experts returns their outputs.
        """
        if self.count == 1 or not len(self.layers):
            only: Tensor = self.layers(x)
            return only.unsqueeze(1).expand(-1, self.count, -1)
        return torch.stack(self.layers([x]), dim=1)


class _Each(nn.Module):
    """A module without weights that is applied to each of several tensors."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [super(_Each, self).forward(x) for x in inputs]


class _ReLUs(_Each, nn.ReLU): ...  # type: ignore[misc]


class _Dropouts(_Each, nn.Dropout): ...  # type: ignore[misc]


class _BatchNorms(nn.ModuleList):
    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [norm(x) for norm, x in zip(self, inputs, strict=True)]


def _for_each(same: Sequence[nn.Module]) -> nn.Module:
    """Return one layer for all experts, which takes a list of their inputs."""
    match same[0]:
        case nn.Linear(in_features=inputs, out_features=outputs):
            return GroupedLinear(len(same), inputs, outputs)
        case nn.ReLU():
            return _ReLUs()
        case nn.Dropout(p=p):
            return _Dropouts(p)
    return _BatchNorms(same)


class MixtureGate(nn.Module):
    """A mixture of experts: `sum over i of softmax(G x)_i E_i`, one learned matrix G and no bias.

    Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD
    2018, eq. 6 and 7. A single expert needs no gate: its output is returned.
    """

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.scores = XavierLinear(width, experts, bias=False) if experts > 1 else None

    def forward(self, x: Tensor, outputs: Tensor) -> Tensor:
        """Return float32[size, w] from the gate's input [size, width] and outputs [size, experts, w]."""
        if self.scores is None:
            return outputs.squeeze(1)
        weights = torch.softmax(self.scores(x), dim=1)
        return torch.bmm(weights.unsqueeze(1), outputs).squeeze(1)


class Level(nn.Module):
    """One level of PLE: experts of each label and shared experts, and a gate per stream that mixes them.

    A label's gate mixes its own experts and the shared experts. The gate of the shared stream mixes all
    experts; the last level has no shared gate, since no expert reads its output.

    Args:
        experts: the experts of each label, then the shared experts.
        width: columns of each stream.
        last: whether this is the last level.
    """

    def __init__(self, experts: Sequence[Experts], width: int, *, last: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        *counts, shared = (some.count for some in experts)
        self.gates = nn.ModuleList(MixtureGate(width, count + shared) for count in counts)
        self.shared = None if last else MixtureGate(width, sum(counts) + shared)

    def forward(self, streams: Sequence[Tensor]) -> list[Tensor]:
        """Return float32[size, w] per label, then the shared stream unless `last`, from all streams."""
        outputs = [experts(x) for experts, x in zip(self.experts, streams, strict=True)]
        mixed = [
            gate(x, torch.cat([output, outputs[-1]], dim=1))
            for gate, x, output in zip(self.gates, streams[:-1], outputs[:-1], strict=True)
        ]
        return mixed if self.shared is None else [*mixed, self.shared(streams[-1], torch.cat(outputs, dim=1))]


class Towers(nn.Module):
    """An MLP for each label, each with its own input.

    Args:
        labels: of the schema; a tower has the outputs of its label.
        width: columns of each input.
        hidden: widths of the hidden layers of each tower.
        dropout, batch_norm: as in `satrap.models.layers.common.mlp`.
    """

    def __init__(
        self, labels: Sequence[Label], width: int, hidden: Sequence[int], *, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__()
        self.towers = nn.ModuleList()
        for label in labels:
            tower, last = mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)
            self.towers.append(nn.Sequential(*tower, OutputLayer(last, [label])))

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return float32[size, outputs of all labels] from float32[size, width] per label."""
        return torch.cat([tower(x) for tower, x in zip(self.towers, inputs, strict=True)], dim=1)
