from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from satrap.batch import Batch
from satrap.errors import DataError
from satrap.launch.scoring import _write, scored_tables


class Half:
    """A trainer that reads ahead and predicts `row / 1000`."""

    class schema:  # noqa: N801
        label_names = ("liked",)

    def predict_batches(self, batches: Iterable[Batch]) -> Iterator[npt.NDArray[np.float32]]:
        for batch in list(batches):
            assert batch.numeric is not None
            yield batch.numeric / 1000


class Rows:
    def tables_and_batches(self) -> Iterator[tuple[pa.Table, Batch]]:
        for start in range(0, 30, 10):
            values = np.arange(start, start + 10, dtype=np.float32)
            yield pa.table({"row": values}), Batch(10, {}, numeric=values[:, None])


def test_each_row_gets_its_own_probability_however_far_the_trainer_reads_ahead() -> None:
    table = pa.concat_tables(scored_tables(Half(), Rows()))  # type: ignore[arg-type]
    assert table.num_rows == 30
    assert np.allclose(table["liked_probability"].to_numpy() * 1000, table["row"].to_numpy())


def test_nothing_to_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        _write(iter(()), tmp_path / "x", "x.csv")
