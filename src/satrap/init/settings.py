"""Network, optimizers and schedule by the size of the data."""

from __future__ import annotations

import math

from satrap.init.choose import Lines

_WIDE = 1024
"""Inputs of the network from which its cross layers get a low rank."""


def batch_size_of(rows: int) -> int:
    """Return the samples per step: some hundred steps in each pass, and at most 4096 samples."""
    return int(min(4096, max(128, 2 ** round(math.log2(max(1, rows) / 200)))))


def settings(rows: int, width: int) -> dict[str, Lines]:
    """Return sections of a recipe for so many training rows and columns of the network's input."""
    batch = batch_size_of(rows)
    hidden = [128, 64] if rows >= 50_000 else [64, 32]
    model: Lines = {
        "name": ("dcnv2", "multiplies features, beside a network of plain layers"),
        "hidden": (hidden, ""),
        "cross_layers": (2, ""),
        "dropout": (0.2, "against learning single rows by heart"),
    }
    if width > _WIDE:
        model["rank"] = (64, f"the input has {width} columns")
    return {
        "model": model,
        "embedding": {
            "optimizer": (
                {"name": "adagrad", "lr": 0.05, "initial_accumulator": float(f"{1 / batch**2:.1e}")},
                "the accumulator keeps the first steps of rare ids small",
            ),
        },
        "dense": {"optimizer": ({"name": "adam", "lr": 0.001}, "")},
        "training": {
            "mode": ("sync", "exact; in one process as fast as hybrid"),
            "epochs": (20 if rows >= 10_000 else 60, "at most"),
            "monitor": ("logloss", "steadier than AUC where validation rows, or 1s, are few"),
            "patience": (2, "stop after so many passes without a better one on validation rows"),
            "seed": (1, ""),
        },
        "data": {"batch_size": (batch, f"about {max(1, rows // batch):,} steps in each pass")},
    }
