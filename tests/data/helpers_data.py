"""Shared by the data tests: schemas, comparison of batches, what is copied."""

import numpy as np
import pyarrow as pa
import pytest

from satrap import Batch, Categorical, Numeric, Schema
from satrap.errors import DataError


def ids_schema(**features):
    return Schema([], features or {"a": Categorical(dim=4)})


def click_schema(**extra):
    features = {"user": Categorical(dim=4), "price": Numeric(), **extra}
    return Schema(["clicked"], features)


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same bytes."""
    mine, theirs = {**one.ids, **one.events}, {**other.ids, **other.events}
    if one.size != other.size or mine.keys() != theirs.keys():
        return False
    for name, jagged in mine.items():
        if jagged.values.tobytes() != theirs[name].values.tobytes():
            return False
        if (jagged.offsets is None) != (theirs[name].offsets is None):
            return False
        if jagged.offsets is not None and not np.array_equal(jagged.offsets, theirs[name].offsets):
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
