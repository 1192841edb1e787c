"""Embeddings in a training loop of your own: a module that looks rows up, and an optimizer that trains them.

```python
embeddings = satrap.nn.EmbeddingCollection(
    {"user": satrap.Categorical(dim=16), "tags": satrap.Categorical(dim=16, multi=True, pooling="mean")},
    optimizer=satrap.optim.RowWiseAdagrad(lr=0.05),
)
row_optimizer = satrap.nn.RowOptimizer(embeddings)
vectors = embeddings({"user": users, "tags": (tag_ids, offsets)})    # feature -> float32[samples, 16]
```
"""

from satrap.nn.collection import EmbeddingCollection
from satrap.nn.row_optimizer import RowOptimizer

__all__ = ["EmbeddingCollection", "RowOptimizer"]


def __dir__() -> list[str]:
    return sorted(__all__)
