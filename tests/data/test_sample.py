import numpy as np
import pytest

from satrap.batch import Batch, Jagged
from satrap.data.sample import Sample


def batch(start: int, count: int) -> Batch:
    rows = np.arange(start, start + count)
    return Batch(
        count,
        {
            "one": Jagged(rows.astype(np.uint64)),
            "two": Jagged(rows.repeat(2).astype(np.uint64), 2 * np.arange(count + 1)),
        },
        numeric=rows[:, None].astype(np.float32),
        labels=(rows[:, None] % 2).astype(np.float32),
    )


def drawn(size: int, total: int, seed: int = 0) -> Batch:
    sample = Sample(size, seed=seed)
    for start in range(0, total, 50):
        sample.add(batch(start, min(50, total - start)))
    assert sample.seen == total
    rows = sample.rows()
    assert rows is not None
    return rows


def test_rows_stay_whole_distinct_and_in_order() -> None:
    found = drawn(100, 1030)
    rows = found.ids["one"].values.astype(int)
    assert found.size == 100
    assert (np.diff(rows) > 0).all()
    assert found.numeric is not None
    assert found.labels is not None
    assert found.numeric[:, 0].astype(int).tolist() == rows.tolist()
    assert found.labels[:, 0].astype(int).tolist() == (rows % 2).tolist()
    assert found.ids["two"].values.reshape(100, 2).tolist() == [[row, row] for row in rows]


def test_every_row_has_the_same_chance() -> None:
    """500 draws of 30 out of 200 rows: each is expected 75 times, with a deviation of 8."""
    counts = np.zeros(200)
    for seed in range(500):
        counts[drawn(30, 200, seed).ids["one"].values.astype(int)] += 1
    assert counts.mean() == pytest.approx(75)
    assert np.abs(counts - 75).max() < 40
    assert counts.std() == pytest.approx(np.sqrt(500 * 0.15 * 0.85), rel=0.25)


def test_fewer_rows_than_asked_for_are_all_kept() -> None:
    assert drawn(100, 70).ids["one"].values.tolist() == list(range(70))
    assert Sample(5).rows() is None
