"""The index of a group as arrays: with it, another store evicts the same rows in the same order.

Eviction depends on a row's last use, but also on which rows share its buckets, its position in them, how
segments have grown, and where the clock hand is. The image holds all of that: per entry 8 bytes of id, 4 of
note and 1 of "live". About 75 % of entries are in use in a full store: 17.4 bytes per row, measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store.arrays import Ids, Inverse, Offsets
from satrap.store.kernels.index import layout
from satrap.store.memory.directory import Directory, IndexMemory

Arrays = Mapping[str, npt.NDArray[Any]]
_WORDS = layout.BUCKET_BYTES // 4
_SLOTS = 2 * layout.ENTRIES
_PAGE_ENTRIES = layout.PAGE_BUCKETS * layout.ENTRIES
_KEPT_COUNTS = (
    layout.PAGES_USED,
    layout.PAGES_FREE,
    layout.SEGMENTS,
    layout.DIRECTORY,
    layout.HAND_SEGMENT,
    layout.HAND_BUCKET,
    layout.SQUEEZED,
    layout.TIGHT,
    layout.TIGHT_UNTIL,
    layout.REASSIGNED,
)


def _lengths(counts: npt.NDArray[np.int64]) -> dict[str, int]:
    segments = int(counts[layout.SEGMENTS])
    return {
        "directory": int(counts[layout.DIRECTORY]),
        "pages": segments * layout.SEGMENT_PAGES,
        "facts": segments * layout.FACTS,
        "free_pages": int(counts[layout.PAGES_FREE]),
    }


def save(parts: IndexMemory) -> dict[str, npt.NDArray[Any]]:
    """Return copies of all state that determines which row is evicted next.

    A delta also needs all of it. Measured with 1 and 5 million rows on one core: 6 to 7 milliseconds per
    million rows, or 25 to 45 if the memory for the copies is fresh, as at the first snapshot.
    """
    pages = int(parts.counts[layout.PAGES_USED])
    buckets = parts.buckets(pages)
    keys = np.ascontiguousarray(buckets[:, :_SLOTS]).view(np.uint64)
    live = buckets[:, _SLOTS : _SLOTS + layout.ENTRIES] != 0
    free = parts.numbers("free_pages", int(parts.counts[layout.PAGES_FREE]))
    live.reshape(pages, -1)[free] = False  # a free page is emptied only when it is used again
    keys[~live] = 0  # keys of removed rows
    lists = {name: parts.numbers(name, count).copy() for name, count in _lengths(parts.counts).items()}
    lists["pages"][: layout.FIRST_SEGMENT * layout.SEGMENT_PAGES] = 0  # scratch
    lists["facts"][: layout.FIRST_SEGMENT * layout.FACTS] = 0
    return {
        "keys": keys,
        "live": live.view(np.uint8),
        "notes": parts.notes(pages).copy(),
        "counts": parts.counts[list(_KEPT_COUNTS)],
        "tables": parts.records[:, [layout.ROOT, layout.DEPTH]],
        **lists,
    }


class Entries(NamedTuple):
    """The rows of an image: ids uint64[n] by table, splits int64[tables + 1], index entries int64[n]."""

    ids: Ids
    splits: Offsets
    at: Offsets


def entries(parts: IndexMemory, image: Arrays) -> Entries:
    """Return the rows of an image; raise `StoreError` if the image does not fit this index."""
    counts = parts.counts.copy()
    counts[list(_KEPT_COUNTS)] = image["counts"]
    lengths, pages = _lengths(counts), int(counts[layout.PAGES_USED])
    shapes = {name: (length,) for name, length in lengths.items()} | {
        "keys": (pages * layout.PAGE_BUCKETS, layout.ENTRIES),
        "live": (pages * layout.PAGE_BUCKETS, layout.ENTRIES),
        "notes": (pages * layout.PAGE_BUCKETS, layout.ENTRIES),
        "tables": (len(parts.records), 2),
    }
    limits = {
        layout.PAGES_USED: layout.PAGES_LIMIT,
        layout.SEGMENTS: layout.SEGMENTS_LIMIT,
        layout.DIRECTORY: layout.DIRECTORY_LIMIT,
    }
    fits = all(image[name].shape == shape for name, shape in shapes.items())
    if not fits or any(counts[word] > counts[limit] for word, limit in limits.items()):
        raise StoreError(
            "the saved eviction state does not fit this store",
            why="the saved store had a larger budget: with fewer replicas, shards hold more tables in memory",
            fix="resume with the memory, cluster.workers and cluster.placements of the saved run",
        )
    lists, used, facts = _lists(image, int(counts[layout.SEGMENTS]))
    table = np.zeros(pages, np.int32)
    table[lists[used]] = np.repeat(facts[:, layout.SEGMENT_TABLE], used.sum(axis=1))
    at = np.flatnonzero(image["live"])
    tables = table[at // _PAGE_ENTRIES]
    order = np.argsort(tables, kind="stable")
    at, tables = at[order], tables[order]
    splits = np.searchsorted(tables, np.arange(len(parts.records) + 1)).astype(np.int64)
    return Entries(image["keys"].reshape(-1)[at].astype(np.uint64), splits, at)


def _lists(image: Arrays, segments: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], Inverse]:
    """Return (pages of each segment, whether each page is in use, facts of each segment)."""
    facts = image["facts"].reshape(segments, layout.FACTS)
    lists = image["pages"].reshape(segments, layout.SEGMENT_PAGES)
    used = np.arange(layout.SEGMENT_PAGES) < facts[:, layout.SEGMENT_COUNT, None]
    used[: layout.FIRST_SEGMENT] = False
    return lists, used, facts


def place(directory: Directory, image: Arrays) -> tuple[Entries, Inverse, Offsets]:
    """Restore a directory to an image; return (the image's rows, their slots, positions of the new rows).

    Raises:
        StoreError: the store holds other rows, or the image belongs to another budget; nothing has changed.
    """
    parts = directory.parts
    rows = entries(parts, image)
    slots, missing = directory.find(rows.ids, rows.splits, use=False)
    here, used = int(parts.records[:, layout.USED].sum()), int(parts.counts[layout.SLOTS_USED])
    if len(slots) - len(missing) != here or used + len(missing) > directory.limit:
        raise StoreError("the store's rows differ from its saved state", fix="clear the store first")
    slots[missing] = used + np.arange(len(missing), dtype=np.int32)
    parts.counts[layout.SLOTS_USED] = used + len(missing)
    _restore(parts, image, rows, slots)
    return rows, slots, missing


def _keys(image: Arrays) -> Ids:
    """Return the keys uint64[buckets, ENTRIES]; the first match of a row's key in its bucket is the row.

    Free entries of an image have key 0. In a bucket with the row of id 0, they get an unused key instead.
    """
    keys, live = image["keys"].astype(np.uint64), image["live"].astype(np.bool_)
    for bucket in np.flatnonzero(((keys == 0) & live).any(axis=1)).tolist():
        rows = keys[bucket][live[bucket]].tolist()
        keys[bucket][~live[bucket]] = next(key for key in range(1, layout.ENTRIES + 2) if key not in rows)
    return keys


def _restore(parts: IndexMemory, image: Arrays, rows: Entries, slots: Inverse) -> None:
    """Restore the index, with these slots for the rows of `entries(image)`."""
    before = int(parts.counts[layout.PAGES_USED])
    parts.counts[list(_KEPT_COUNTS)] = image["counts"]
    pages = int(parts.counts[layout.PAGES_USED])
    parts.buckets(max(before, pages))[:] = 0  # unused pages must be empty
    buckets = parts.buckets(pages)
    buckets[:, :_SLOTS] = _keys(image).view(np.uint32)
    words = np.zeros(pages * _PAGE_ENTRIES, np.uint32)
    words[rows.at] = slots.astype(np.uint32) + np.uint32(1)
    buckets[:, _SLOTS : _SLOTS + layout.ENTRIES] = words.reshape(-1, layout.ENTRIES)
    parts.notes(pages)[:] = image["notes"]
    for name, count in _lengths(parts.counts).items():
        parts.numbers(name, count)[:] = image[name].reshape(-1)
    parts.records[:, [layout.ROOT, layout.DEPTH]] = image["tables"]
    parts.records[:, layout.USED] = np.diff(rows.splits)
    segments = int(parts.counts[layout.SEGMENTS])
    lists, used, _ = _lists(image, segments)
    each = np.bincount(rows.at // _PAGE_ENTRIES, minlength=pages)
    facts = parts.numbers("facts", segments * layout.FACTS).reshape(segments, layout.FACTS)
    facts[:, layout.SEGMENT_USED] = np.where(used, each[np.where(used, lists, 0)], 0).sum(axis=1)
