"""Network, optimizers and schedule by the size of the data."""

from __future__ import annotations

import math

from satrap.init.choose import Lines

_WIDE = 1024
"""Inputs of the network from which its cross layers get a low rank."""
_MANY = 1_000_000
"""Rows from which a few passes are enough, and rates fall when one is not better."""
_SHORT = 10_000
"""Rows below which a pass is some dozens of steps: the early stop waits for more of them."""
_FEW = 300
"""Rows of the rarer label below which a logistic regression is the better model."""
_SOME = 6000
"""Rows of the rarer label below which the network starts at the mean of the label."""

FEW_NUMBERS = 2000
"""Rows of a regression label below which the network starts at its mean."""


def is_small(rows: int, share: float | None) -> bool:
    """Return whether so many training rows suffice for a weight per value only.

    Args:
        rows: training rows.
        share: share of rows with a 1; None, or 0 of values that were not counted: never.
    """
    return bool(share) and _rarer(rows, share) < _FEW


def starts_at_mean(rows: int, share: float | None) -> bool:
    """Return whether so few training rows would not soon correct a random start; arguments as above."""
    return bool(share) and _rarer(rows, share) < _SOME


def _rarer(rows: int, share: float | None) -> int:
    return round(rows * min(share, 1 - share)) if share else rows


def batch_size_of(rows: int) -> int:
    """Return the samples per step: some hundred steps in each pass, and at most 4096 samples."""
    least = 32 if rows < _SHORT else 128
    return int(min(4096, max(least, 2 ** round(math.log2(max(1, rows) / 200)))))


def settings(rows: int, width: int, share: float | None) -> dict[str, Lines]:
    """Return sections of a recipe.

    Args:
        rows: training rows.
        width: columns of the network's input.
        share: share of rows with a 1, as for `is_small`.
    """
    batch = batch_size_of(rows)
    small = is_small(rows, share)
    quick = rows >= (_SHORT if small else _MANY)  # the loss of a logistic regression has no flat parts
    model = _small_model(_rarer(rows, share)) if small else _model(rows, width)
    return {
        "model": model,
        "embedding": {
            "optimizer": (
                {"name": "adagrad", "lr": 0.05, "initial_accumulator": float(f"{1 / batch**2:.1e}")},
                "the accumulator keeps the first steps of rare ids small",
            ),
        },
        "dense": {"optimizer": ({"name": "adam", "lr": _rate(small, rows)}, "")},
        "training": {
            "mode": ("sync", "exact; in one process as fast as hybrid"),
            "epochs": (20 if quick else 60, "at most"),
            "monitor": ("logloss", "steadier than AUC where validation rows, or 1s, are few"),
            "patience": (
                2 if quick else 3 if rows >= _SHORT else 6,
                "stop after so many passes without a better one on validation rows",
            ),
            "plateau": (
                (0.1, "factor on all rates after such a pass")
                if quick
                else (None, "rates stay: the loss of small tables may pause before it falls on")
            ),
            "seed": (1, ""),
        },
        "data": {
            "batch_size": (batch, f"about {max(1, rows // batch):,} steps in each pass"),
            "global_batch": (True, "of all workers together, so that more of them take the same steps"),
        },
    }


def _rate(small: bool, rows: int) -> float:
    return 0.001 if not small else 0.003 if rows < _SHORT else 0.01


def _small_model(rare: int) -> Lines:
    why = f"logistic regression: only about {rare:,} training rows have the rarer label"
    return {"name": ("lr", f"{why}; with more, dcnv2")}


def _model(rows: int, width: int) -> Lines:
    hidden = [128, 64] if rows >= 50_000 else [64, 32]
    model: Lines = {
        "name": ("dcnv2", "multiplies features, beside a network of plain layers"),
        "hidden": (hidden, ""),
        "cross_layers": (2, ""),
        "dropout": (0.2, "against learning single rows by heart"),
    }
    if width > _WIDE:
        model["rank"] = (64, f"the input has {width} columns")
    return model
