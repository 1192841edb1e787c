"""A schema, a network with every kind of weight, and optimizers that train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import satrap


def schema() -> satrap.Schema:
    features: dict[str, Any] = {name: satrap.Categorical(dim=8) for name in ("user", "item")}
    return satrap.Schema(labels=["clicked"], features={**features, "price": satrap.Numeric()})


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:], "lr": 0.1}], lr=0.01),
}

WIDTH = 256


class Net(nn.Module):
    """Has a weight of two layers, two weights that share memory, a frozen one, buffers and an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.deep = nn.Sequential(self.first, nn.ReLU(), nn.LayerNorm(WIDTH))
        self.again, self.cut = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.again.weight = self.enter.weight
        self.cut.weight.data = self.first.weight.data[: WIDTH // 2]
        self.frozen = nn.Linear(WIDTH // 2, WIDTH)
        self.frozen.requires_grad_(False)
        self.head, self.scale = nn.Linear(WIDTH, 1), nn.Parameter(torch.tensor(0.5))
        self.none = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("seen", self.head.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.deep(self.norm(self.enter(x))))
        found: Tensor = self.head(self.frozen(self.cut(x).relu())) * self.scale
        return found


def net() -> nn.Module:
    torch.manual_seed(1)
    return Net()


def train(model: nn.Module, make: Make, steps: int = 4) -> list[Tensor]:
    """Take steps with the gradients of two parts of a batch each."""
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer = make(learnt)
    for step in range(steps):
        torch.manual_seed(step)
        for _ in range(2):
            model(torch.randn(16, WIDTH)).square().mean().backward()
        optimizer.step()
        for parameter in learnt:
            parameter.grad = None
    return [t.detach().clone() for t in model.state_dict().values()]
