"""XXH64 in plain Python, the oracle of checksums and of ids."""

from __future__ import annotations

M = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotate(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & M


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * P2) & M, 31) * P1 & M


def xxh64(data: bytes, seed: int = 0) -> int:
    """The specification of xxHash64, written down."""
    n, at = len(data), 0
    if n >= 32:
        lanes = [(seed + P1 + P2) & M, (seed + P2) & M, seed, (seed - P1) & M]
        while n - at >= 32:
            for i in range(4):
                lanes[i] = _round(lanes[i], int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little"))
            at += 32
        h = sum(_rotate(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18), strict=True)) & M
        for lane in lanes:
            h = ((h ^ _round(0, lane)) * P1 + P4) & M
    else:
        h = (seed + P5) & M
    h = (h + n) & M
    while n - at >= 8:
        h = (_rotate(h ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * P1 + P4) & M
        at += 8
    if n - at >= 4:
        h = (_rotate(h ^ (int.from_bytes(data[at : at + 4], "little") * P1 & M), 23) * P2 + P3) & M
        at += 4
    while at < n:
        h = _rotate(h ^ (data[at] * P5 & M), 11) * P1 & M
        at += 1
    h = (h ^ (h >> 33)) * P2 & M
    h = (h ^ (h >> 29)) * P3 & M
    return h ^ (h >> 32)
