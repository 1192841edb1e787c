"""satrap: deep recommender models whose embedding tables outgrow any one machine.

```python
import satrap, torch

schema = satrap.Schema(labels=["clicked"], features={"user": satrap.Categorical(dim=16)})
model = satrap.models.DCNv2(schema, hidden=[256, 128])
trainer = satrap.Trainer(
    model, schema,
    embedding_optimizer=satrap.optim.RowWiseAdagrad(lr=0.05),
    dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
trainer.fit(satrap.data.read("train/*.parquet", schema, batch_size=4096))
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from satrap.runtime.threads import shorten_spinning

shorten_spinning()

if TYPE_CHECKING:
    from satrap import data, losses, metrics, models, nn, optim, store, train
    from satrap.batch import Batch, EmbeddedBatch, Jagged
    from satrap.schema import Categorical, Label, Numeric, Schema, Table, Vector
    from satrap.train import Trainer

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Categorical",
    "EmbeddedBatch",
    "Jagged",
    "Label",
    "Numeric",
    "Schema",
    "Table",
    "Trainer",
    "Vector",
    "data",
    "losses",
    "metrics",
    "models",
    "nn",
    "optim",
    "store",
    "train",
]

_LAZY = {
    **dict.fromkeys(("Batch", "EmbeddedBatch", "Jagged"), "batch"),
    **dict.fromkeys(("Categorical", "Label", "Numeric", "Schema", "Table", "Vector"), "schema"),
    "Trainer": "train",
}
"""Name -> its module, imported on first use, so that commands start fast and can handle Ctrl-C early."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"satrap.{_LAZY[name]}"), name)
    if name in (*__all__, "errors", "schema"):
        return import_module(f"satrap.{name}")
    raise AttributeError(f"module 'satrap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
