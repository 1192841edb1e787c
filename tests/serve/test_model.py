"""A served model scores as its predictor, and only with rows in its own process."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from satrap.data import read
from satrap.errors import ConfigError
from satrap.launch.folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve.model import ServedModel, StageSeconds
from satrap.serve.request import ScoreRequest
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, frame


def test_scores_are_those_of_the_predictor_to_the_bit(run: RunFolder, rows: pd.DataFrame) -> None:
    predictor = load_predictor(run, run.recipe())
    model = ServedModel("books", predictor)
    expected = predictor.predict_all(read(rows, predictor.schema.without_labels(), batch_size=len(rows)))
    found = model.score(model.encode([ScoreRequest(len(rows), {}, plain(rows))]))
    assert found.dtype == expected.dtype == np.float64
    np.testing.assert_array_equal(found, expected)
    assert sorted(model.columns) == sorted(COLUMNS)
    assert model.rows().keys() == {"user", "book", "tags", "words", "hour", "old", "both"}
    model.close()


def test_a_new_model_is_warm_and_has_counted_nothing(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    score = ServedModel.score
    monkeypatch.setattr(
        ServedModel, "score", lambda self, batch: sizes.append(batch.size) or score(self, batch)
    )
    model = ServedModel("books", load_predictor(run, run.recipe()))
    assert set(sizes) == {2}
    assert model.seconds == StageSeconds()
    assert set(model.looked_up().values()) == {(0, 0)}
    model.close()


def test_rows_take_no_optimizer_state(run: RunFolder) -> None:
    """Adam keeps two numbers beside each weight; a server keeps none."""
    predictor = load_predictor(run, run.recipe())
    [(_, chunk)] = [
        (table, chunk) for table, chunk in predictor.exchange.durability.snapshot() if table == "book"
    ]
    assert (chunk.weights.shape[1], chunk.state.shape[1]) == (4, 0)
    assert len(chunk.ids) == frame()["book"].nunique()
    predictor.close()


def test_rows_elsewhere_are_refused() -> None:
    predictor = SimpleNamespace(exchange=None)
    with pytest.raises(ConfigError, match="not in this process"):
        ServedModel("books", predictor)  # type: ignore[arg-type]
