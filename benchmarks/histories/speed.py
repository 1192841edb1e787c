"""Processor time of a model of a history, and of a plain padded PyTorch module of as many weights.

`python -m benchmarks.histories.speed`: both passes over 512 histories of 0 to 50 events, most of them short,
or of 50 events each, which leaves nothing to pad. Items and categories have rows of 16; one thread. The sides
take turns, and each figure is the best of its turns, as other programs run on the machine. Rows and the
optimizer are left out: they are the same.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from benchmarks.record import write
from satrap.batch import EmbeddedBatch, JaggedRows

SIZE, LENGTH, DIM, TURNS = 512, 50, 16, 15


def event(table: str) -> satrap.Categorical:
    return satrap.Categorical(
        dim=DIM, table=table, multi=True, pooling="none", sequence="past", max_values=LENGTH
    )


SCHEMA = satrap.Schema(
    ["y"],
    {
        "user": satrap.Categorical(dim=DIM),
        "item": satrap.Categorical(dim=DIM),
        "category": satrap.Categorical(dim=DIM),
        "seen": event("item"),
        "seen_category": event("category"),
    },
)


def relu_mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


class Padded(nn.Module, ABC):
    """A model of padded events [size, longest, 32], targets [size, 32], and all other columns [size, 48]."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.deep = relu_mlp(48 + added, 128, 1)

    def forward(self, events: Tensor, real: Tensor, target: Tensor, flat: Tensor) -> Tensor:
        logits: Tensor = self.deep(torch.cat([flat, self.interest(events, real, target)], dim=1))
        return logits

    @abstractmethod
    def interest(self, events: Tensor, real: Tensor, target: Tensor) -> Tensor:
        """Return the part of the MLP's input that the history gives, [size, added]."""


def compared(target: Tensor, events: Tensor) -> Tensor:
    each = target.unsqueeze(1).expand_as(events)
    return torch.cat([each, events, each - events, each * events], dim=2)


class PaddedDIN(Padded):
    def __init__(self) -> None:
        super().__init__(32)
        self.score = relu_mlp(128, 64, 1)

    def interest(self, events: Tensor, real: Tensor, target: Tensor) -> Tensor:
        weights = (1 + self.score(compared(target, events))) * real.unsqueeze(2)
        return (weights * events).sum(1)


class PaddedDIEN(Padded):
    """PyTorch's own GRU reads the events; AUGRU has no layer there, so it is a loop over steps."""

    def __init__(self) -> None:
        super().__init__(32)
        self.interests, self.score = nn.GRU(32, 32, batch_first=True), relu_mlp(128, 64, 1)
        self.of_x, self.of_h = nn.Linear(32, 96), nn.Linear(32, 96)

    def interest(self, events: Tensor, real: Tensor, target: Tensor) -> Tensor:
        states = self.interests(events)[0]
        scores = self.score(compared(target, states)).masked_fill(~real.unsqueeze(2), -1e9)
        weights, made = torch.softmax(scores, dim=1) * real.unsqueeze(2), self.of_x(states)
        h = torch.zeros_like(target)
        for j in range(events.shape[1]):
            a, b = made[:, j], self.of_h(h)
            r, u = torch.sigmoid(a[:, :64] + b[:, :64]).chunk(2, dim=1)
            h = torch.lerp(h, torch.tanh(a[:, 64:] + r * b[:, 64:]), u * weights[:, j])  # weight 0: stays
        return h


class PaddedBST(Padded):
    """A `nn.TransformerEncoderLayer`; the target comes first, so that padding is at the end."""

    def __init__(self) -> None:
        super().__init__(64)
        self.project, self.positions = nn.Linear(32, 64, bias=False), nn.Parameter(torch.zeros(51, 64))
        self.block = nn.TransformerEncoderLayer(64, 2, 256, dropout=0.0, batch_first=True)

    def interest(self, events: Tensor, real: Tensor, target: Tensor) -> Tensor:
        x = self.project(torch.cat([target.unsqueeze(1), events], dim=1))
        x = x + self.positions[: x.shape[1]]
        there = torch.cat([torch.ones(len(real), 1, dtype=torch.bool), real], dim=1)
        found: Tensor = self.block(x, src_key_padding_mask=~there)[:, 0]
        return found


SIDES: dict[str, Callable[[], Padded]] = {"din": PaddedDIN, "dien": PaddedDIEN, "bst": PaddedBST}


def batch(seed: int, full: bool) -> tuple[EmbeddedBatch, tuple[Tensor, ...]]:
    """The same random rows, ragged and padded; padding is not timed."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(random.geometric(1 / 15, SIZE) - 1, LENGTH)
    lengths = np.full_like(lengths, LENGTH) if full else lengths
    bounds = np.append(0, np.cumsum(lengths))
    torch.manual_seed(seed)
    one, *many = (
        {k: torch.randn(n, DIM) for k in names}
        for n, names in ((SIZE, ("user", "item", "category")), (int(bounds[-1]), ("seen", "seen_category")))
    )
    [past] = many
    offsets = torch.from_numpy(bounds)
    jagged = {k: JaggedRows(v.requires_grad_(), offsets, bounds) for k, v in past.items()}
    ragged = EmbeddedBatch(SIZE, {**one, **jagged}, torch.empty(SIZE, 0))
    events, real = JaggedRows(torch.cat([*past.values()], 1).detach(), offsets).padded(int(lengths.max()))
    target = torch.cat([one["item"], one["category"]], dim=1)
    return ragged, (events.requires_grad_(), real, target, torch.cat([*one.values()], dim=1))


def seconds(step: Callable[[], Tensor]) -> float:
    start = time.process_time()
    step().sum().backward()
    return time.process_time() - start


def measured(model: nn.Module, other: Padded, batches: list[Any]) -> dict[str, Any]:
    """Return samples per second of both sides, the ratio, and the weights of each."""
    times: dict[str, float] = {"ragged": 9.0, "padded": 9.0}
    for _ in range(TURNS):
        parts = {"ragged": 0.0, "padded": 0.0}
        for ragged, padded in batches:
            parts["ragged"] += seconds(partial(model, ragged))
            parts["padded"] += seconds(partial(other, *padded))
        times = {side: min(times[side], parts[side] / len(batches)) for side in times}
    return {
        "samples_per_second": {side: round(SIZE / second) for side, second in times.items()},
        "ratio": times["padded"] / times["ragged"],
        "weights": [sum(p.numel() for p in side.parameters()) for side in (model, other)],
    }


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for full in (False, True):
        batches = [batch(seed, full) for seed in range(1 if full else 3)]
        for name, make in SIDES.items():
            key = f"{name}, {'50 events each' if full else 'most of them short'}"
            results[key] = measured(satrap.models.create(name, SCHEMA), make(), batches)
            print(key, results[key], flush=True)
    parameters = {"size": SIZE, "longest": LENGTH, "mean": 14, "dim": DIM, "turns": TURNS}
    print(write(Path(__file__).parent / "results", parameters, results))


if __name__ == "__main__":
    main()
