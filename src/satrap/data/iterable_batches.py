"""A data set as `torch.utils.data.IterableDataset`, for a `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from satrap.batch import Batch
from satrap.data.dataset import Dataset
from satrap.errors import ConfigError
from satrap.runtime.arguments import checked


@checked(dataset="pass satrap.data.read(...)")
class IterableBatches(IterableDataset[Batch]):
    """The batches of a `Dataset`, for a `torch.utils.data.DataLoader`.

    ```python
    batches = satrap.data.IterableBatches(train)
    for epoch in range(3):
        batches.set_epoch(epoch)
        for batch in torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2):
            vectors = embeddings(batch)
    ```

    Items are whole batches, so the loader gets `batch_size=None`. Each of its worker processes reads its own
    share of the rows, as of a `Dataset` for several workers; so with another `num_workers` batches have other
    rows.

    Args:
        dataset: the data set; its batch size and order count.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        epoch: Any = torch.zeros((), dtype=torch.int64)
        self._epoch = epoch.share_memory_()  # the processes of a loader see it

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the rows from the next iteration on, >= 0; initially 0.

        `Trainer.fit`, accelerate and `transformers.Trainer` call it before each epoch.

        Raises:
            ConfigError: a number below 0.
        """
        if epoch < 0:
            raise ConfigError(f"epoch must be >= 0, got {epoch}")
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Batch]:
        settings, info = self._dataset.settings, get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        share = self._dataset.with_options(
            worker=settings.worker * workers + worker, workers=settings.workers * workers
        )
        return share.batches(int(self._epoch))
