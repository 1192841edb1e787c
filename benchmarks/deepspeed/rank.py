"""One process of DeepSpeed: it takes steps on request, and reports their time.

Runs in an environment with DeepSpeed, without satrap: `python rank.py STAGE SIZES` and torchrun's variables.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import deepspeed  # type: ignore[import-not-found,unused-ignore]
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WARM = 3


class Tower(nn.Module):
    """The network of `benchmarks.dense.rank`."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tower = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())])
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        output: Tensor = self.head(self.tower(numbers))
        return output


def engine_of(model: nn.Module, stage: int, size: int) -> Any:
    """Return DeepSpeed's engine in float32, with the same optimizer and DeepSpeed's other defaults."""
    config = {
        "train_micro_batch_size_per_gpu": size,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    parameters = list(model.parameters())
    return deepspeed.initialize(model=model, model_parameters=parameters, optimizer=optimizer, config=config)[
        0
    ]


def main() -> None:
    """Read numbers of steps from standard input, and print the milliseconds per step of each round."""
    stage, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # DeepSpeed prints
    deepspeed.logger.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(0)
    engine = engine_of(Tower(sizes["width"], sizes["layers"]), stage, sizes["size"])
    numbers = torch.randn(sizes["size"], sizes["width"])
    labels = torch.rand(sizes["size"], 1).round()

    def step() -> float:
        loss = F.binary_cross_entropy_with_logits(engine(numbers), labels)
        engine.backward(loss)
        engine.step()
        return float(loss)

    losses = [step() for _ in range(WARM)]
    answers.write(f"ready {losses[-1]}\n")
    for line in sys.stdin:
        steps, start = int(line), time.perf_counter()
        for _ in range(steps):
            step()
        answers.write(f"{1000 * (time.perf_counter() - start) / steps}\n")
    os._exit(0)


if __name__ == "__main__":
    main()
