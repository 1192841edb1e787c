"""Updates of a served model to another step: the changed rows, and the network's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import nn

from satrap.checkpoint.chain import read_deleted
from satrap.checkpoint.feed import published_at
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest, reading_settings
from satrap.checkpoint.parts import read_chunks
from satrap.checkpoint.saved_dense import SavedDense, loaded_values
from satrap.dense import DENSE_TABLE
from satrap.serve.versions.overlay import Overlay
from satrap.store import BUCKETS, Shard, bucket_of
from satrap.store.buckets import mask_of


@dataclass(frozen=True, slots=True)
class Update:
    """An update of the served model to another step.

    Args:
        step: step of the training run.
        version: `Manifest.id` of the checkpoint.
        published: time of the cut, in seconds since 1970.
        overlay: the changed rows, sealed.
        network: the network with the weights of the step.
        back: whether the step is an earlier one, see `History`.
    """

    step: int
    version: str
    published: float
    overlay: Overlay
    network: nn.Module
    back: bool = False

    @classmethod
    def read(
        cls,
        deltas: Sequence[tuple[Storage, Manifest]],
        store: Shard,
        network: nn.Module,
        *,
        buckets: Sequence[int] = range(BUCKETS),
    ) -> Self:
        """Read the deltas that follow the version in a store; every byte is verified.

        Args:
            deltas: deltas in order, see `deltas_since`.
            store: store with the previous rows; another thread may read it concurrently.
            network: receives the weights of the last delta.
            buckets: fixed buckets of the store, default all.

        Raises:
            CheckpointError: a delta is damaged, or was removed.
        """
        storage, manifest = deltas[-1]
        published = published_at(manifest.settings, storage.url)
        overlay = changed_rows(deltas, store, buckets)
        try:
            with reading_settings(storage.url):
                step = int(manifest.settings["steps"])
                network.load_state_dict(loaded_values(dict(SavedDense(storage, manifest).weights)))
        except BaseException:
            overlay.close()
            raise
        return cls(step, manifest.id, published, overlay, network)


def changed_rows(deltas: Sequence[tuple[Storage, Manifest]], store: Shard, buckets: Sequence[int]) -> Overlay:
    """Return the rows of some fixed buckets that deltas change, as a sealed overlay; see `Update.read`."""
    overlay = Overlay(store)
    try:
        for delta in deltas:
            for table, ids in read_deleted(*delta).items():
                overlay.remove(table, ids[mask_of(buckets)[bucket_of(table, ids)]])
            for table, chunk in read_chunks(*delta, buckets=buckets):
                if table != DENSE_TABLE:
                    overlay.load(chunk)
    except BaseException:
        overlay.close()
        raise
    overlay.seal()
    return overlay
