"""Trains a network, with the chosen parts on a disk, and prints the time of each step and a sum."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from satrap.dense import offload_weights, offloaded
from satrap.dense.memory.initial_weights import build
from satrap.dense.memory.weight_offload import stay_off
from satrap.runtime.malloc import keep_freed_memory


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer."""
    return torch.optim.Adam(parameters, lr=1e-3)


def network(layers: int, width: int) -> nn.Module:
    """Return square layers."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def train(
    how: str, folder: str | None, device: torch.device, layers: int, width: int, batch: int, steps: int
) -> list[Any]:
    """Return [seconds, processor seconds] of each step, and the sum of the weights."""
    off = how == "weights"
    model = build(lambda: network(layers, width), 0, in_parts=bool(off and folder))
    if off:
        stay_off(offload_weights(model, folder), device)
    else:
        model.to(device)
    make = adam if how == "nothing" else offloaded(adam, folder)
    parameters, times = list(model.parameters()), list[Any]()
    optimizer = make(parameters)
    for step in range(steps):
        torch.manual_seed(step)
        begin, used = time.perf_counter(), time.process_time()
        model(torch.randn(batch, width).to(device)).square().mean().backward()
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append([time.perf_counter() - begin, time.process_time() - used])
    return [*times, sum(parameter.double().sum().item() for parameter in parameters)]


def on_device(how: str, limit: int, *sizes: int) -> dict[str, Any]:
    """Train with limited memory of a CUDA device, or all of it for 0; print the bytes of the tensors."""
    device = torch.device("cuda")
    total = torch.cuda.get_device_properties(device).total_memory
    train(how, None, device, 2, 300, 8, 2)
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / total)
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    try:
        *steps, checksum = train(how, None, device, *sizes)
    except torch.OutOfMemoryError:
        return {"out_of_memory": True, "seconds": time.perf_counter() - begin}
    return {
        "out_of_memory": False,
        "seconds": time.perf_counter() - begin,
        "steps_s": [round(seconds, 4) for seconds, _ in steps],
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "sum": checksum,
    }


def main() -> None:
    """Train a small network, enter a control group, train."""
    how, folder, group, *sizes = sys.argv[1:]
    layers, width, batch, steps = map(int, sizes)
    keep_freed_memory()  # as a worker does
    if folder == "cuda":
        print(json.dumps(on_device(how, int(group), layers, width, batch, steps)))
        return
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    train(how, folder, cpu, 2, 300, 8, 2)  # the imports of a first step do not count
    Path(group).write_text("0", encoding="utf-8")
    print(json.dumps(train(how, folder, cpu, layers, width, batch, steps)))


if __name__ == "__main__":
    main()
