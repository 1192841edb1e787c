"""How full the index of `satrap.store.gpu` can be, in a simulation: `python -m benchmarks.store.device_load`.

Random ids are inserted one after another into segments of two-choice buckets of 8 entries, without
displacement, with one move, and with up to two moves. Results: for each load, the share of ids without a
place, and the share of rows in their second bucket. A minute.
"""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np

from benchmarks import record
from satrap.store.gpu.index import SEGMENT

LOADS = (0.75, 0.8, 0.85, 0.9, 0.92, 0.95)
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@numba.njit
def buckets_of(h, segments, width):
    x = (h >> HALF) * np.uint64(segments)
    offset = np.int64(((x & LOW) * np.uint64(width)) >> HALF)
    other = np.int64(((h & LOW) * np.uint64(width - 1)) >> HALF)
    begin = np.int64(x >> HALF) * width
    return begin + offset, begin + other + (other >= offset)


@numba.njit
def add(entries, used, bucket, h):
    entries[bucket, used[bucket]] = h
    used[bucket] += 1


@numba.njit
def make_room(entries, used, home, h, moves, segments, width):
    """Whether h got an entry of the full bucket `home`."""
    for e in range(8):
        row = entries[home, e]
        a, b = buckets_of(row, segments, width)
        other = a + b - home
        if used[other] < 8:
            add(entries, used, other, row)
        elif moves < 2 or not make_room(entries, used, other, row, 1, segments, width):
            continue
        entries[home, e] = h
        return True
    return False


@numba.njit
def away(entries, used, segments, width):
    """Rows in their second bucket."""
    rows = 0
    for bucket in range(len(used)):
        for e in range(used[bucket]):
            rows += buckets_of(entries[bucket, e], segments, width)[0] != bucket
    return rows


@numba.njit
def fill(hashes, segments, width, moves, marks):
    """Ids without a place, and rows in their second bucket, after each number of ids."""
    entries = np.zeros((segments * width, 8), np.uint64)
    used = np.zeros(segments * width, np.int64)
    lost, at = 0, 0
    result = np.zeros((2, len(marks)), np.int64)
    for i in range(len(hashes)):
        h = hashes[i]
        first, second = buckets_of(h, segments, width)
        if used[first] < 8:
            add(entries, used, first, h)
        elif used[second] < 8:
            add(entries, used, second, h)
        else:
            for attempt in range(2 * moves):
                home = second if attempt % 2 else first
                if make_room(entries, used, home, h, 1 + attempt // 2, segments, width):
                    break
            else:
                lost += 1
        if i + 1 == marks[at]:
            result[:, at] = lost, away(entries, used, segments, width)
            at += 1
    return result


def main() -> None:
    results = {}
    for width, segments in ((SEGMENT, 4096), (64, 65536)):
        marks = np.array([int(load * 8 * segments * width) for load in LOADS])
        hashes = np.random.default_rng(0).integers(0, 2**64, marks[-1], np.uint64)
        for moves in (0, 1, 2):
            lost, second = fill(hashes, segments, width, moves, marks) / marks
            case = f"segments of {width} buckets, {moves} moves"
            print(case, dict(zip(LOADS, lost.tolist(), strict=True)), flush=True)
            results[case] = {"no place": lost.tolist(), "second bucket": second.tolist()}
    folder = Path(__file__).with_name("results")
    record.write(folder, {"loads": LOADS, "entries": 2**25}, results, folder / "device_load.json")


if __name__ == "__main__":
    main()
