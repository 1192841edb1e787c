"""The index on a device as arrays: with it, another store evicts the same rows in the same order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from satrap.errors import StoreError
from satrap.store.gpu import layout
from satrap.store.gpu.index import DeviceIndex

Image = Mapping[str, npt.NDArray[np.int64]]
_KEPT = [layout.STEP, layout.USED, layout.FREE, layout.HAND]


def save(index: DeviceIndex) -> Image:
    """Return copies of all state that determines slots, and which row is evicted next.

    The key "device" distinguishes it from an image of rows in RAM, see `snapshot.index_snapshot`.
    """
    table, free = index.table, index.lists.free[: int(index.table.state[layout.FREE])]
    parts = {"device": table.words, "owners": table.owners, "words": table.state[_KEPT], "free": free}
    return {name: part.cpu().numpy().astype(np.int64) for name, part in parts.items()}


def restore(index: DeviceIndex, image: Image) -> None:
    """Restore an empty index from an image of `save`.

    Raises:
        StoreError: the image is of an index of another size; nothing has changed.
    """
    table, many = index.table, len(image["free"])
    if image["device"].shape != tuple(table.words.shape) or index.slots:
        raise StoreError(
            "the saved eviction state does not fit this store",
            why="the saved store had another budget",
            fix="resume with the embedding.memory of the saved run",
        )
    table.words.copy_(torch.from_numpy(image["device"]))
    table.owners.copy_(torch.from_numpy(image["owners"]))
    table.state[_KEPT] = torch.from_numpy(image["words"]).to(table.state.device)
    if many > len(index.lists.free):
        longer = torch.zeros(many, dtype=torch.int32, device=table.state.device)
        index.lists, index.generation = index.lists._replace(free=longer), index.generation + 1
        table.state[layout.FREE_LIMIT] = many
    index.lists.free[:many] = torch.from_numpy(image["free"].astype(np.int32)).to(table.state.device)
    rows = np.bincount(index.entries().tables, minlength=len(index.tallies))
    index.tallies[:, 0] = torch.from_numpy(rows).to(table.state.device)
