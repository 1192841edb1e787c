"""What a store needs besides rows to resume exactly: order of eviction, ids that wait for admission.

Only a store of the same fixed buckets can use it, and only of groups with the same tables: names begin with
these. A store with nothing but counters writes no file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import of_buckets, write_file
from satrap.checkpoint.storage import FileEntry, Storage, damaged
from satrap.store import BUCKETS
from satrap.store.buckets import mask_of, runs_of

Arrays = Mapping[str, npt.NDArray[Any]]

_OWN = "buckets"
"""Array of a store whose buckets are not neighbours: bool[4096], which ones it has."""
_SCATTERED = range(0)
"""Buckets in the entry of such a store's file."""


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
    """Write the state of a store; return the file, or nothing if the store has only counters.

    `arrays` maps `<tables of a group>.<what>` to an array, where `counts` are counters. The suffix of the
    file's name tells several stores apart.
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
    """Return what stores of exactly these buckets wrote, verified; nothing if there were none.

    There may be several, as a worker may have the buckets of a shard server: their names tell their tables.
    """
    every: dict[str, npt.NDArray[Any]] = {}
    runs = runs_of(buckets)
    wanted = runs[0] if len(runs) == 1 else _SCATTERED
    for name, entry in manifest.files.items():
        if is_store_file(name) and tuple(entry.buckets or (0, BUCKETS)) == (wanted.start, wanted.stop):
            where = f"{manifest.data}/{name}"
            try:
                found = load(storage.read(where, entry))
            except (SafetensorError, KeyError, ValueError) as error:  # right checksums, wrong content
                raise damaged(storage.path(where), str(error)) from error
            own = found.pop(_OWN, None)
            if own is None or np.array_equal(own, mask_of(buckets)):
                every |= found
    return every


def without_id(data: bytes, id_: np.uint64) -> bytes:
    """Return the content of such a file without an id in the order of eviction."""
    arrays = {name: array.copy() for name, array in load(data).items()}
    for name, array in arrays.items():
        if name.endswith(".index.keys"):
            found = array == id_
            arrays[name.removesuffix("keys") + "live"][found] = 0
            array[found] = 0
    return save(arrays)
