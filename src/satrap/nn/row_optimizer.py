"""The optimizer of a loop of the user's own: it trains the rows of a collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from satrap.errors import ConfigError
from satrap.nn.collection import EmbeddingCollection
from satrap.runtime.arguments import checked


@checked(embeddings="pass a satrap.nn.EmbeddingCollection")
class RowOptimizer(torch.optim.Optimizer):
    """Trains the rows of an `EmbeddingCollection`, with the verbs of `torch.optim`.

    ```python
    loss.backward()
    dense_optimizer.step()
    row_optimizer.step()
    dense_optimizer.zero_grad()
    row_optimizer.zero_grad()
    ```

    A step takes one step of the collection's optimizer for each row that a forward pass looked up, with the
    sum of the row's gradients over all backward passes since the last step. So gradients of several batches
    can be accumulated. Unlike parameters, rows have no gradient left after a step.

    Learning-rate schedulers of `torch.optim` change `param_groups[0]["lr"]`. A table with its own optimizer
    follows in proportion.

    Args:
        embeddings: the collection. Its rows have one `RowOptimizer`.
    """

    def __init__(self, embeddings: EmbeddingCollection) -> None:
        self._embeddings, self._lr = embeddings, embeddings.optimizer.lr
        # `torch.optim.Optimizer` demands a parameter; nothing computes a gradient of this one.
        super().__init__([torch.zeros(0, requires_grad=True)], {"lr": self._lr})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Train the rows; without a backward pass since the last step, nothing happens.

        The store works in the background: errors of an update come with the next step, or the next `save`.

        Args:
            closure: computes the loss again, and its gradients, as in `torch.optim`; default none.

        Returns:
            The loss that the closure returned, None without one.

        Raises:
            ConfigError: a learning rate below 0.
            StoreError: gradients of an earlier step were NaN or infinite, or the store has no room for a row.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lr = float(self.param_groups[0]["lr"])
        if not lr >= 0:
            raise ConfigError(f"the learning rate of the rows must be >= 0, got {lr}")
        self._embeddings._train(lr / self._lr)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """Return all state, so that a copy is refused as one of the collection is."""
        return {**super().__getstate__(), "_embeddings": self._embeddings}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all backward passes since the last step."""
        self._embeddings._forget()
