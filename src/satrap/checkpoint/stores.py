"""What stores need besides their rows to go on exactly: one file of each that has more than a few counters.

It holds which rows are evicted next and which ids wait for admission, and is worth something only to a store
of the same fixed buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import of_buckets, write_file
from satrap.checkpoint.storage import FileEntry, Storage, damaged
from satrap.store import BUCKETS

Arrays = Mapping[str, npt.NDArray[Any]]


def is_store_file(name: str) -> bool:
    """Return whether it is a file that `write_store` wrote."""
    return name.startswith("store.")


def write_store(
    storage: Storage, folder: str, arrays: Arrays, *, suffix: str = "", buckets: range = range(BUCKETS)
) -> dict[str, FileEntry]:
    """Write what a store needs besides its rows; return the file, none if it needs counters only.

    Args:
        storage: of the checkpoint.
        folder: its data folder.
        arrays: by name, `<group>.<what>`; those that are called "counts" are counters.
        suffix: of the file's name, to tell several stores apart.
        buckets: of the store.

    Raises:
        OSError: it cannot be written.
    """
    if all(name.endswith(".counts") for name in arrays):
        return {}
    name = f"store{suffix}.safetensors"
    plain = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    return {name: of_buckets(write_file(storage, f"{folder}/{name}", save(plain)), buckets)}


def read_store(storage: Storage, manifest: Manifest, buckets: range) -> Arrays:
    """Return what a store of just these buckets wrote, nothing if none did.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    for name, entry in manifest.files.items():
        if is_store_file(name) and tuple(entry.buckets or (0, BUCKETS)) == (buckets.start, buckets.stop):
            where = f"{manifest.data}/{name}"
            try:
                return load(storage.read(where, entry))
            except (SafetensorError, KeyError, ValueError) as error:  # right checksums, wrong content
                raise damaged(storage.path(where), str(error)) from error
    return {}


def without_id(data: bytes, id_: np.uint64) -> bytes:
    """Return the content of such a file with every row of an id taken from the order of eviction."""
    arrays = {name: array.copy() for name, array in load(data).items()}
    for name, array in arrays.items():
        if name.endswith(".index.keys"):
            found = array == id_
            arrays[name.removesuffix("keys") + "live"][found] = 0
            array[found] = 0
    return save(arrays)
