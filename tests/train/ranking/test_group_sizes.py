"""Groups that are too small for a ranking metric are refused before the training, over all workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.errors import DataError, SatrapError
from satrap.train.ranking.group_sizes import check_group_sizes
from tests.dense.threads import together


def batches(groups: list[int], size: int = 4, read: list[int] | None = None) -> Iterator[Batch]:
    for start in range(0, len(groups), size):
        ids = np.array(groups[start : start + size], np.uint64)
        if read is not None:
            read.append(len(ids))
        yield Batch(len(ids), {}, groups=ids)


def test_one_large_group_is_enough_and_the_rest_is_not_read() -> None:
    read = list[int]()
    check_group_sizes(batches([1] * 5 + list(range(1000)), read=read), 5, Workers())
    assert len(read) <= 3


@pytest.mark.parametrize("count", [30, 1000])
def test_small_groups_are_refused_with_the_size_of_the_largest(count: int) -> None:
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(count), 3)).tolist()
    check_group_sizes(batches(groups), 3, Workers())
    with pytest.raises(DataError, match=r"first 4 samples of a group, but the largest group has 3"):
        check_group_sizes(batches(groups), 4, Workers())


def test_samples_without_groups_or_with_one_each_are_refused() -> None:
    with pytest.raises(DataError, match="a batch has none"):
        check_group_sizes([Batch(2, {})], 2, Workers())
    with pytest.raises(DataError, match="largest group has 1") as caught:
        check_group_sizes(batches([1, 2, 3]), 2, Workers())
    assert "several samples share" in str(caught.value.fix)


@pytest.mark.parametrize("most", [4, 5])
def test_workers_add_up_their_samples(most: int) -> None:
    """Each of two workers has two samples of each group."""

    def check(workers: Workers) -> str:
        try:
            check_group_sizes(batches([1, 2, 1, 2]), most, workers)
        except SatrapError as error:
            return str(error)
        return ""

    answers = together(2, check)
    assert answers[0] == answers[1]
    assert ("largest group has 4" in answers[0]) == (most == 5)
