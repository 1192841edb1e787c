"""State of a store other than rows, to resume exactly: order of eviction, ids that wait for admission.

Only a store with the same fixed buckets can use it, and only groups with the same tables: array names begin
with the table names. A store with only counters writes no file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from satrap.checkpoint.files.storage import FileEntry, Storage, damaged
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import of_buckets, write_file
from satrap.store import BUCKETS
from satrap.store.buckets import mask_of, runs_of

Arrays = Mapping[str, npt.NDArray[Any]]

_OWN = "buckets"
"""Array of a store whose buckets are not consecutive: bool[4096], True for its buckets."""
_SCATTERED = range(0)
"""Buckets in the file entry of a store whose buckets are not consecutive."""


def is_store_file(name: str) -> bool:
    """Return whether a file was written by `write_store`."""
    return name.startswith("store.")


def write_store(
    storage: Storage,
    folder: str,
    arrays: Arrays,
    *,
    suffix: str = "",
    buckets: Sequence[int] = range(BUCKETS),
) -> dict[str, FileEntry]:
    """Write the state of a store; return the file, or no file if the store has only counters.

    `arrays` maps `<tables of a group>.<kind>` to an array; the kind `counts` holds counters. The suffix of
    the file's name distinguishes several stores.
    """
    if all(name.endswith(".counts") for name in arrays):
        return {}
    name = f"store{suffix}.safetensors"
    plain = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    runs = runs_of(buckets)
    if len(runs) != 1:
        plain[_OWN] = mask_of(buckets)
    entry = write_file(storage, f"{folder}/{name}", [save(plain)])
    return {name: of_buckets(entry, runs[0] if len(runs) == 1 else _SCATTERED)}


def read_store(storage: Storage, manifest: Manifest, buckets: Sequence[int]) -> Arrays:
    """Return the state of all stores with exactly these buckets, verified; empty if there were none.

    Several stores may have the same buckets, such as a worker and a shard server: array names identify their
    tables.
    """
    every: dict[str, npt.NDArray[Any]] = {}
    runs = runs_of(buckets)
    run = runs[0] if len(runs) == 1 else _SCATTERED
    for name, entry in manifest.files.items():
        if is_store_file(name) and tuple(entry.buckets or (0, BUCKETS)) == (run.start, run.stop):
            where = f"{manifest.data}/{name}"
            try:
                arrays = load(storage.read(where, entry))
            except (SafetensorError, KeyError, ValueError) as error:  # valid checksums, invalid content
                raise damaged(storage.path(where), str(error)) from error
            mask = arrays.pop(_OWN, None)
            if mask is None or np.array_equal(mask, mask_of(buckets)):
                every |= arrays
    return every


def without_id(data: bytes, id_: np.uint64) -> bytes:
    """Return the content of a `write_store` file without an id in the order of eviction."""
    arrays = {name: array.copy() for name, array in load(data).items()}
    for name, array in arrays.items():
        if name.endswith(".index.keys"):
            matches = array == id_
            arrays[name.removesuffix("keys") + "live"][matches] = 0
            array[matches] = 0
    return save(arrays)
