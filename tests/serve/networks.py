"""Every model, untrained or after a few steps, with ids and a number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

import satrap

SCHEMA = satrap.Schema(
    (satrap.Label(name="click"),),
    {
        "user": satrap.Categorical(dim=8),
        "item": satrap.Categorical(dim=8),
        "age": satrap.Numeric(),
    },
)
MODELS: dict[str, Callable[[], nn.Module]] = {
    name: (lambda name=name: getattr(satrap.models, name)(SCHEMA))  # type: ignore[misc]
    for name in (
        "AutoInt",
        "DCNv2",
        "DLRM",
        "DNN",
        "DeepFM",
        "FM",
        "FiBiNET",
        "FinalMLP",
        "FinalNet",
        "GDCN",
        "LR",
        "MMoE",
        "MaskNet",
        "PLE",
        "RankMixer",
        "WideDeep",
        "Wukong",
        "XDeepFM",
    )
}
ROWS = {"user": list(range(40)), "item": [i % 7 for i in range(40)], "age": [i / 10 for i in range(40)]}


def saved(model: nn.Module, folder: Path) -> str:
    trainer = satrap.Trainer(model, SCHEMA, embedding_optimizer=satrap.optim.SGD(lr=0.1), mode="sync")
    clicks = [int(i % 3 == 0) for i in range(40)]
    trainer.fit(satrap.data.read({**ROWS, "click": clicks}, SCHEMA, batch_size=8), epochs=1)
    trainer.save(str(folder))
    trainer.close()
    return str(folder)
