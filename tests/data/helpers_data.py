"""Shared by the data tests: schemas, comparison of batches, what is copied, an independent XXH64."""

import numpy as np
import pyarrow as pa
import pytest

from satrap import Batch, Categorical, Numeric, Schema
from satrap.errors import DataError

MASK = 2**64 - 1


def ids_schema(**features):
    return Schema([], features or {"a": Categorical(dim=4)})


def click_schema(**extra):
    features = {"user": Categorical(dim=4), "price": Numeric(), **extra}
    return Schema(["clicked"], features)


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same bytes."""
    if one.size != other.size or one.ids.keys() != other.ids.keys():
        return False
    for name, jagged in one.ids.items():
        if jagged.values.tobytes() != other.ids[name].values.tobytes():
            return False
        if (jagged.offsets is None) != (other.ids[name].offsets is None):
            return False
        if jagged.offsets is not None and not np.array_equal(jagged.offsets, other.ids[name].offsets):
            return False
    for name in ("numeric", "labels", "label_mask", "weights", "groups"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if (mine is None) != (theirs is None) or (mine is not None and mine.tobytes() != theirs.tobytes()):
            return False
    return True


def numbers(dataset, epoch=0, position=None):
    """All values of the first numeric feature in the order they come."""
    parts = [batch.numeric[:, 0] for batch in dataset.batches(epoch, position)]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def error_of(run) -> DataError:
    with pytest.raises(DataError) as caught:
        run()
    assert len(str(caught.value).splitlines()) <= 4
    return caught.value


class Counted:
    """A table that notes in `copied` how many columns each table has that is made of it."""

    def __init__(self, table, copied):
        self.table, self.copied = table, copied

    def __getattr__(self, name):
        found = getattr(self.table, name)

        def call(*arguments, **keywords):
            answer = found(*arguments, **keywords)
            if not isinstance(answer, pa.Table):
                return answer
            self.copied.append(answer.num_columns)
            return Counted(answer, self.copied)

        return call if callable(found) else found


def _rotl(x, r):
    return (x << r | x >> (64 - r)) & MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 in plain Python integers, written from the specification."""
    p1, p2, p3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
    p4, p5 = 9650029242287828579, 2870177450012600261

    def step(acc, lane):
        return _rotl((acc + lane * p2) & MASK, 31) * p1 & MASK

    i, n = 0, len(data)
    if n >= 32:
        v = [(seed + p1 + p2) & MASK, (seed + p2) & MASK, seed, (seed - p1) & MASK]
        while i + 32 <= n:
            for k in range(4):
                v[k] = step(v[k], int.from_bytes(data[i + 8 * k : i + 8 * k + 8], "little"))
            i += 32
        h = sum(_rotl(x, r) for x, r in zip(v, (1, 7, 12, 18), strict=True)) & MASK
        for x in v:
            h = ((h ^ step(0, x)) * p1 + p4) & MASK
    else:
        h = (seed + p5) & MASK
    h = (h + n) & MASK
    while i + 8 <= n:
        h = (_rotl(h ^ step(0, int.from_bytes(data[i : i + 8], "little")), 27) * p1 + p4) & MASK
        i += 8
    if i + 4 <= n:
        h = (_rotl(h ^ int.from_bytes(data[i : i + 4], "little") * p1 & MASK, 23) * p2 + p3) & MASK
        i += 4
    for byte in data[i:]:
        h = _rotl(h ^ byte * p5 & MASK, 11) * p1 & MASK
    h = (h ^ h >> 33) * p2 & MASK
    h = (h ^ h >> 29) * p3 & MASK
    return h ^ h >> 32
