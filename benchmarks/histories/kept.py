"""Memory of `hstu` for the backward pass, per event of a history, and processor time of both passes.

`python -m benchmarks.histories.kept`: 2 blocks of width 64, one history of 1,000, 4,000 or 16,000 events.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import satrap
from benchmarks.record import write
from satrap.batch import EmbeddedBatch, JaggedRows

WAYS: dict[str, dict[str, int]] = {
    "all before": {},
    "window 128": {"window": 128},
    "window 128, 16 global tokens": {"window": 128, "global_tokens": 16},
}
LENGTHS = (1_000, 4_000, 16_000)


def measured(events: int, options: dict[str, int]) -> dict[str, float]:
    """Return bytes and microseconds per event of one history."""
    seen = satrap.Categorical(dim=16, multi=True, pooling="none", sequence="past", max_values=events)
    schema = satrap.Schema(["y"], {"seen": seen})
    torch.manual_seed(0)
    model = satrap.models.create("hstu", schema, **options)
    rows = JaggedRows(torch.randn(events, 16, requires_grad=True), torch.tensor([0, events]))
    batch, storages = EmbeddedBatch(1, {"seen": rows}, torch.empty(1, 0)), dict[int, int]()

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    start = time.process_time()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(batch)
    logits.sum().backward()
    seconds = time.process_time() - start
    return {"bytes": sum(storages.values()) / events, "microseconds": seconds / events * 1e6}


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for way, options in WAYS.items():
        for events in LENGTHS:
            if options or events < 16_000:  # all pairs of 16,000 events would be 8 GiB
                measured(events, options)  # the first time, memory comes from the system
                figures = results.setdefault(way, {})[str(events)] = measured(events, options)
                kib, us = figures["bytes"] / 1024, figures["microseconds"]
                print(f"{way}, {events} events: {kib:.1f} KiB, {us:.1f} us")
    print(write(Path(__file__).parent / "results", {}, results))


if __name__ == "__main__":
    main()
