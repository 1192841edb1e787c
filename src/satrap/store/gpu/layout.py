"""Words, codes and tuples of pointers shared by the host code and the kernels of the index.

A field of a tuple that is named after a tensor is its pointer in a kernel. Kernels take counts from device
memory: their grids cover the most there can be, and programs without work end at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

(
    STEP,
    USED,
    FREE,
    FREE_LIMIT,
    LIMIT,
    SEGMENTS,
    WIDTH,
    PROTECTED,
    REFUSED,
    LOGGED,
    LOG,
    HAND,
    TTL,
    WORDS,
) = range(14)
"""Words of the state, int64 each.

STEP: number of requests that used rows, 1..2^32 - 2, then 1 again. USED: slots handed out so far, including
free ones. FREE, FREE_LIMIT: length and room of the list of free slots. LIMIT: most slots. SEGMENTS, WIDTH:
segments, and buckets in each. PROTECTED: rows used in this many requests before the present one are not
evicted. REFUSED: ids of the last insert without a place. LOGGED: rows that lost their slot so far. LOG: lines
of the log. HAND: the next bucket to check for expired rows. TTL: requests without a use after which a row
expires.
"""

ENTRIES = 8
"""Entries of a bucket."""
CHUNK = 64
"""Ids that a program inserts at once. Entries and slots depend on it, so it is the same on every device."""

NONE, RECENT, FREQUENT = 0, 1, 2
"""Contents of a note, as in `satrap.store.kernels.index.layout`."""
FIND, ERASE = -1, -2
"""Other modes of `find`: it notes no use; it frees the entries."""

SECOND, CREATED, EVICTED, REFUSAL = 1, 2, 4, 8
"""Bits of a status: the id's second bucket was probed, it got a row, a row left for it, it was refused."""
COUNTERS = ("rows", "created", "evicted", "refused", "second_probes")
"""Columns of the counters of each table."""


class Sorted(NamedTuple):
    """Keys of positions.

    Attributes:
        keys: int64[n], in order, see `kernels.order`.
        positions: int64[n], the position of each.
        owners: int16[n], the table of each position; unused with one table.
    """

    keys: Any
    positions: Any
    owners: Any


class Buckets(NamedTuple):
    """The index.

    Attributes:
        words: int64[buckets, 16], see `kernels.index`; halves: the same memory as int32.
        owners: int16[buckets, 8], the table of each entry; unused with one table.
        state: int64[WORDS].
    """

    words: Any
    halves: Any
    owners: Any
    state: Any


class Found(NamedTuple):
    """Results for distinct keys: slots int32[n]; status int8[n]; tables of evicted rows, int16[n]."""

    slots: Any
    status: Any
    victims: Any


class Queue(NamedTuple):
    """Distinct keys without a row: runs int32[n], ascending; count int32[1]."""

    runs: Any
    count: Any


class Inserted(NamedTuple):
    """Results of `insert` for `settle`; *seq* is a key's number in the queue.

    Attributes:
        slots: int32[n] by seq: NEW of `kernels.insert`, -1, or the slot of the evicted row.
        places: int32[n] by seq, the entry of a NEW key.
        gone_keys, gone_tables: int64[n], int16[n] by seq, of the evicted row.
        spans: int32[programs, 2], first seq of each program, and the one after its last.
        made, gone: int32[programs], NEW keys and evicted rows of each program.
    """

    slots: Any
    places: Any
    gone_keys: Any
    gone_tables: Any
    spans: Any
    made: Any
    gone: Any


class Lists(NamedTuple):
    """Free slots, int32[FREE_LIMIT], a stack; log int64[LOG, 2], a ring of (key, table << 32 | slot)."""

    free: Any
    log: Any


class Expired(NamedTuple):
    """Expired rows.

    Attributes:
        sums: int32[programs], how many have expired.
        dropped: int32[1], how many left.
        victims: int16, the table of each that left.
    """

    sums: Any
    dropped: Any
    victims: Any
