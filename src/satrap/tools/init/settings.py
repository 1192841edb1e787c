"""Network, optimizers and schedule, chosen by the size of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from satrap.runtime.cuda import CudaDevice
from satrap.runtime.formatting import size
from satrap.tools.init.choose import Lines
from satrap.tools.plan.device_rows import SHARE

_WIDE = 1024
"""Inputs of the network above which its cross layers get a low rank."""
_MANY = 1_000_000
"""Rows from which few epochs suffice, and an epoch without improvement lowers the learning rates."""
_SHORT = 10_000
"""Rows below which an epoch has only dozens of steps, so early stopping waits for more epochs."""
_FEW = 300
"""Rows with the rarer label below which logistic regression is the better model."""
_SOME = 6000
"""Rows with the rarer label below which the network starts at the label's mean."""

FEW_NUMBERS = 2000
"""Rows of a regression label below which the network starts at its mean."""


def is_small(rows: int, share: float | None) -> bool:
    """Return whether the training rows suffice only for logistic regression, one weight per value.

    Args:
        rows: training rows.
        share: share of 1s; with None, or 0 for values that were not counted, the result is False.
    """
    return bool(share) and _rarer(rows, share) < _FEW


def starts_at_mean(rows: int, share: float | None) -> bool:
    """Return whether there are too few rows to correct a random start soon; arguments as in `is_small`."""
    return bool(share) and _rarer(rows, share) < _SOME


def _rarer(rows: int, share: float | None) -> int:
    return round(rows * min(share, 1 - share)) if share else rows


def batch_size_of(rows: int) -> int:
    """Return the samples per step: some hundred steps per epoch, and at most 4096 samples."""
    least = 32 if rows < _SHORT else 128
    return int(min(4096, max(least, 2 ** round(math.log2(max(1, rows) / 200)))))


def settings(rows: int, width: int, share: float | None) -> dict[str, Lines]:
    """Return sections of a recipe.

    Args:
        rows: training rows.
        width: columns of the network's input.
        share: share of 1s, see `is_small`.
    """
    batch = batch_size_of(rows)
    small = is_small(rows, share)
    quick = rows >= (_SHORT if small else _MANY)  # the loss of logistic regression has no plateaus
    model = _small_model(_rarer(rows, share)) if small else _model(rows, width)
    return {
        "model": model,
        "embedding": {
            "optimizer": (
                {"name": "adagrad", "lr": 0.05, "initial_accumulator": float(f"{1 / batch**2:.1e}")},
                "this accumulator keeps the first steps of rare ids small",
            ),
        },
        "dense": {"optimizer": ({"name": "adam", "lr": _rate(small, rows)}, "")},
        "training": {
            "mode": ("sync", "exact, and in one process as fast as hybrid"),
            "epochs": (20 if quick else 60, "at most"),
            "monitor": ("logloss", "steadier than AUC with few validation rows or few 1s"),
            "patience": (
                2 if quick else 3 if rows >= _SHORT else 6,
                "stop after this many epochs without improvement on validation rows",
            ),
            "plateau": (
                (0.1, "factor on all learning rates after such an epoch")
                if quick
                else (None, "constant rates: the loss of small tables may plateau before it falls again")
            ),
            "seed": (1, ""),
        },
        "data": {
            "batch_size": (batch, f"about {max(1, rows // batch):,} steps per epoch"),
            "global_batch": (True, "for all workers together: adding workers keeps the steps"),
        },
    }


def towers(rows: int, items: int, of_item: Sequence[str], exclude: str | None) -> dict[str, Lines]:
    """Return sections of a recipe that finds items.

    Args:
        rows: training rows.
        items: distinct items.
        of_item: the features of the item.
        exclude: the feature of users whose items of training rows are not ranked; None: all items are.
    """
    batch = int(min(4096, max(64, 2 ** round(math.log2(max(1, rows) / 100)))))
    negatives = int(min(512, 2 ** math.ceil(math.log2(max(2, items)))))
    most = 10 if items >= 20 else max(1, items // 2)  # some items may be in rows that were not read
    left_out, why = {}, ""
    if exclude is not None:
        left_out, why = (
            {"exclude": exclude},
            ", without items of its training rows, since few are chosen twice",
        )
    return {
        "model": {
            "name": ("two_tower", "vectors of users and items, to find the best of many items"),
            "item": (list(of_item), "all other features belong to the user"),
            "hidden": ([], ""),
            "width": (64, ""),
        },
        "embedding": {
            "optimizer": (
                {"name": "adagrad", "lr": 0.05},
                "with more, users' earlier items soon fill the lists",
            ),
            "initial_scale": (0.05, ""),
        },
        "dense": {"optimizer": ({"name": "adam", "lr": 0.001}, "")},
        "training": {
            "mode": ("sync", "exact, and in one process as fast as hybrid"),
            "loss": (
                {"name": "sampled_softmax", "negatives": negatives, "logq": True},
                "each item against the items of other rows and drawn ones",
            ),
            "ranking": (
                {"at": [most], "among": "items"} | left_out,
                f"all items are ranked for each user{why}",
            ),
            "monitor": (f"ndcg@{most}", "the higher the item is in the list, the better"),
            "epochs": (20, "at most; a few suffice"),
            "patience": (2, "stop after this many epochs without improvement on validation rows"),
            "seed": (1, ""),
        },
        "data": {
            "batch_size": (batch, f"about {max(1, rows // batch):,} steps per epoch"),
            "global_batch": (True, "for all workers together: adding workers keeps the steps"),
        },
    }


def on_gpu(cuda: CudaDevice, tables: int) -> str:
    """Return which settings use a GPU, for tables of this many bytes."""
    keys = ["training.device: cuda"]
    if 0 < tables <= cuda.free * SHARE:
        keys.append(f"embedding.device: cuda (the tables have about {size(tables)})")
    if cuda.bfloat16:
        keys.append("dense.precision: bfloat16")
    return f"To train on the GPU ({cuda.name}, {size(cuda.free)} free), set {', '.join(keys)}."


def _rate(small: bool, rows: int) -> float:
    return 0.001 if not small else 0.003 if rows < _SHORT else 0.01


def _small_model(rare: int) -> Lines:
    why = f"logistic regression: only about {rare:,} training rows have the rarer label"
    return {"name": ("lr", f"{why}; with more, dcnv2")}


def _model(rows: int, width: int) -> Lines:
    hidden = [128, 64] if rows >= 50_000 else [64, 32]
    model: Lines = {
        "name": ("dcnv2", "multiplies features, next to a plain MLP"),
        "hidden": (hidden, ""),
        "cross_layers": (2, ""),
        "dropout": (0.2, "against memorizing single rows"),
    }
    if width > _WIDE:
        model["rank"] = (64, f"the input has {width} columns")
    return model
