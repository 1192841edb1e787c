"""The index in plain Python, one id after another: what the kernels must equal, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from satrap.store.gpu import layout
from satrap.store.hashes import index_salt

MASK = 2**64 - 1
FACTOR = 0xD6E8FEB86659FD93
INVERSE = pow(FACTOR, -1, 2**64)


def mix(x: int, factor: int = FACTOR) -> int:
    for _ in range(2):
        x = (x ^ (x >> 32)) * factor & MASK
    return x ^ (x >> 32)


def unmix(x: int) -> int:
    return mix(x, INVERSE)


@dataclass
class Entry:
    h: int
    table: int
    slot: int  # -1: not given yet
    note: int


@dataclass
class Model:
    """An index with the arguments of `DeviceIndex`, and the shape that one has."""

    tables: list[str]
    limit: int
    segments: int
    width: int
    policy: int = layout.NONE
    protected: int = 0
    ttl: int = 0
    free_limit: int = 1
    ring: int = 1
    step: int = 0
    hand: int = 0
    used: int = 0
    refused: int = 0
    moved: int = 0
    twice: int = 0
    free: list[int] = field(default_factory=list)
    log: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.salts = [int(index_salt(name)) for name in self.tables]
        self.counters = {name: np.zeros(len(self.tables), np.int64) for name in layout.COUNTERS}
        self.buckets: list[list[Entry | None]] = [[None] * 8 for _ in range(self.segments * self.width)]

    def distinct(self, request: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The (hash, table) of (table, id), in order."""
        return sorted({(mix(i ^ self.salts[t]), t) for t, i in request})

    def segment(self, h: int) -> int:
        return (h >> 32) * self.segments >> 32

    def pair(self, h: int) -> tuple[int, int]:
        x = (h >> 32) * self.segments
        offset = (x & 0xFFFFFFFF) * self.width >> 32
        other = (h & 0xFFFFFFFF) * (self.width - 1) >> 32
        begin = (x >> 32) * self.width
        return begin + offset, begin + other + (other >= offset)

    def entries_of(self, h: int) -> list[tuple[int, int]]:
        return [(b, e) for b in self.pair(h) for e in range(8)]

    def at(self, place: tuple[int, int]) -> Entry | None:
        return self.buckets[place[0]][place[1]]

    def put(self, place: tuple[int, int], entry: Entry | None) -> None:
        self.buckets[place[0]][place[1]] = entry

    def place_of(self, key: tuple[int, int]) -> tuple[int, int] | None:
        for place in self.entries_of(key[0]):
            entry = self.at(place)
            if entry is not None and (entry.h, entry.table) == key:
                return place
        return None

    def fresh_note(self) -> int:
        return {layout.NONE: 0, layout.RECENT: self.step}.get(self.policy, 1 << 20 | self.step & 0xFFFFF)

    def request(self, keys: list[tuple[int, int]], admitted: set[tuple[int, int]] | None = None) -> list[int]:
        """Find and insert distinct keys; return their slots."""
        self.step = self.step % 0xFFFFFFFE + 1
        if self.ttl:
            self.expire()
        places = [self.place_of(key) for key in keys]
        for key, place in zip(keys, places, strict=True):
            self.counters["second_probes"][key[1]] += place is None or place[0] != self.pair(key[0])[0]
            if place is not None:
                entry = self.at(place)
                assert entry is not None
                if self.policy == layout.RECENT:
                    entry.note = self.step
                elif self.policy == layout.FREQUENT and (entry.note ^ self.step) & 0xFFFFF:
                    entry.note = min((entry.note >> 20) + 1, 0xFFF) << 20 | self.step & 0xFFFFF
        missing = [key for key, place in zip(keys, places, strict=True) if place is None]
        self.insert([key for key in missing if admitted is None or key in admitted])
        found = [self.place_of(key) for key in keys]
        return [-1 if place is None else self.at(place).slot for place in found]  # type: ignore[union-attr]

    def expire(self) -> None:
        """Drop rows under the hand that were not used for more than ttl steps."""
        window = min(len(self.buckets), 4 * len(self.buckets) // self.ttl + 1)
        room = min(self.free_limit - len(self.free), self.ring // 2)
        for k in range(window):
            bucket = (self.hand + k) % len(self.buckets)
            for e, entry in enumerate(self.buckets[bucket]):
                age = 0 if entry is None else (self.step - entry.note) & 0xFFFFFFFF
                if entry is not None and age > max(self.ttl, self.protected) and room > 0:
                    room -= 1
                    self.buckets[bucket][e] = None
                    self.free.append(entry.slot)
                    self.log.append((entry.table, unmix(entry.h) ^ self.salts[entry.table], entry.slot))
                    self.counters["evicted"][entry.table] += 1
        self.hand = (self.hand + window) % len(self.buckets)

    def programs(self, missing: list[tuple[int, int]]) -> list[range]:
        """The keys of each program: whole segments, those that begin in its chunk."""
        segments = [self.segment(h) for h, _ in missing]
        heads = [i for i in range(len(missing)) if i == 0 or segments[i] != segments[i - 1]]
        chunks = range(0, len(missing), layout.CHUNK)
        begins = [next((i for i in heads if i >= c), len(missing)) for c in chunks] + [len(missing)]
        return [range(a, b) for a, b in pairwise(begins)]

    def insert(self, missing: list[tuple[int, int]]) -> None:
        room = len(self.free) + self.limit - self.used
        new, evicted = [], []
        for program in self.programs(missing):
            for start in range(program.start, program.stop, layout.CHUNK):
                chunk = range(start, min(start + layout.CHUNK, program.stop))
                placed, replaced = self.insert_chunk(missing, chunk, room)
                new += placed
                evicted += replaced
        for seq in sorted(new):
            place = self.place_of(missing[seq])
            assert place is not None
            slot = self.free.pop() if self.free else self.used
            self.used += slot == self.used
            self.at(place).slot = slot  # type: ignore[union-attr]
            self.counters["created"][missing[seq][1]] += 1
        for seq, gone in sorted(evicted, key=lambda pair: pair[0]):
            self.log.append((gone.table, unmix(gone.h) ^ self.salts[gone.table], gone.slot))
            self.counters["created"][missing[seq][1]] += 1
            self.counters["evicted"][gone.table] += 1
        without = set(range(len(missing))) - set(new) - {seq for seq, _ in evicted}
        self.refused = len(without)
        for seq in without:
            self.counters["refused"][missing[seq][1]] += 1
        self.counters["rows"] = self.rows()

    def clear(self) -> None:
        self.buckets = [[None] * 8 for _ in self.buckets]
        self.used, self.free = 0, []
        self.counters["rows"] = self.rows()

    def rows(self) -> np.ndarray:
        tables = [entry.table for bucket in self.buckets for entry in bucket if entry is not None]
        return np.bincount(np.array(tables, np.int64), minlength=len(self.tables))

    def insert_chunk(
        self, missing: list[tuple[int, int]], chunk: range, room: int
    ) -> tuple[list[int], list[tuple[int, Entry]]]:
        fresh = {seq: Entry(*missing[seq], -1, self.fresh_note()) for seq in chunk}
        newcomers = {seq: fresh[seq] for seq in chunk if seq < room}
        left = self.place(newcomers, chunk.start)
        new = [seq for seq in newcomers if seq not in left]
        waiting = [seq for seq in chunk if seq not in new]
        evicted: list[tuple[int, Entry]] = []
        while self.policy != layout.NONE:
            taken: set[tuple[int, int]] = set()
            wins = []
            for seq in waiting:
                victim = self.victim(missing[seq][0])
                if victim is not None and victim not in taken:
                    wins.append((seq, victim))
                if victim is not None:
                    taken.add(victim)
            if not wins:
                break
            for seq, victim in wins:
                gone = self.at(victim)
                assert gone is not None
                fresh[seq].slot = gone.slot
                evicted.append((seq, gone))
                self.put(victim, fresh[seq])
                waiting.remove(seq)
        return new, evicted

    def victim(self, h: int) -> tuple[int, int] | None:
        """The row of two buckets that deserves eviction most."""
        best, worth = None, -1
        for place in self.entries_of(h):
            entry = self.at(place)
            if entry is None or entry.slot < 0:
                continue
            if self.policy == layout.FREQUENT:
                age, deserves = (self.step - entry.note) & 0xFFFFF, 0xFFFFFFFF - entry.note
            else:
                age = deserves = (self.step - entry.note) & 0xFFFFFFFF
            if age > self.protected and deserves > worth:
                best, worth = place, deserves
        return best

    def place(self, entries: dict[int, Entry], first: int) -> list[int]:
        """Give keys of the chunk that begins at `first` free entries, or move rows; return the rest."""
        left = list(entries)
        for which in (0, 1):
            for seq in list(left):
                bucket = self.pair(entries[seq].h)[which]
                if None in self.buckets[bucket]:
                    self.put((bucket, self.buckets[bucket].index(None)), entries[seq])
                    left.remove(seq)
        while True:
            wants = []
            for seq in left:
                move = self.move(entries[seq].h, seq - first)
                if move is not None:
                    wants.append((seq, *move))
            if not wants:
                break
            for k, (seq, source, target) in enumerate(wants):
                if all(source != s and target != t for _, s, t in wants[:k]):
                    self.put(target, self.at(source))
                    self.put(source, entries[seq])
                    self.moved += 1
                    left.remove(seq)
        return [seq for seq in left if not self.move_twice(entries[seq])]

    def move_twice(self, entry: Entry) -> bool:
        """Place an entry by moving a row to a full bucket, after moving one of that bucket's rows away."""
        for source in self.entries_of(entry.h):
            middle = self.other(source)
            for e in range(8):
                end = self.other((middle, e))
                if None in self.buckets[end]:
                    self.put((end, self.buckets[end].index(None)), self.at((middle, e)))
                    self.put((middle, e), self.at(source))
                    self.put(source, entry)
                    self.twice += 1
                    return True
        return False

    def other(self, place: tuple[int, int]) -> int:
        """The other bucket of the row at a place."""
        entry = self.at(place)
        assert entry is not None
        return sum(self.pair(entry.h)) - place[0]

    def move(self, h: int, begin: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """An entry of the buckets of h, from number `begin` on, whose row has room elsewhere; and where."""
        places = self.entries_of(h)
        for k in range(16):
            source = places[(16 - begin + k) % 16]
            other = self.other(source)
            if None in self.buckets[other]:
                return source, (other, self.buckets[other].index(None))
        return None

    def remove(self, keys: list[tuple[int, int]]) -> int:
        places = [self.place_of(key) for key in keys]
        for place in places:
            if place is not None:
                self.free.append(self.at(place).slot)  # type: ignore[union-attr]
                self.put(place, None)
        self.counters["rows"] = self.rows()
        return sum(place is not None for place in places)

    def grow(self, limit: int, segments: int, width: int) -> int:
        """Lay the index out again; return the number of entries without a place."""
        old, before, wide = self.buckets, self.segments, self.width
        self.limit, self.segments, self.width = limit, segments, width
        self.buckets, lost = [[None] * 8 for _ in range(segments * width)], 0
        for segment in range(segments):
            begin, end = segment * before // segments, ((segment + 1) * before - 1) // segments + 1
            flat = [entry for bucket in old[begin * wide : end * wide] for entry in bucket]
            for start in range(0, len(flat), layout.CHUNK):
                chunk = flat[start : start + layout.CHUNK]
                mine = {k: e for k, e in enumerate(chunk) if e is not None and self.segment(e.h) == segment}
                lost += len(self.place(mine, 0))
        return lost

    def image(self) -> list[tuple[int, int, int, int]]:
        """(entry, hash, table, word) of each row."""
        return [
            (8 * b + e, entry.h, entry.table, entry.note << 32 | entry.slot + 1)
            for b, bucket in enumerate(self.buckets)
            for e, entry in enumerate(bucket)
            if entry is not None
        ]

    def entries(self) -> list[tuple[int, int, int, int]]:
        """(table, id, slot, note), ordered by (table, fixed bucket, id)."""
        rows = [entry for bucket in self.buckets for entry in bucket if entry is not None]
        ids = [unmix(row.h) ^ self.salts[row.table] for row in rows]
        return [
            (row.table, i, row.slot, row.note)
            for row, i in sorted(zip(rows, ids, strict=True), key=lambda x: (x[0].table, x[0].h >> 52, x[1]))
        ]
