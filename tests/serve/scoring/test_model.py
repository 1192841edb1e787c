"""A served model scores as its predictor, and only with rows in its own process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import satrap
from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.data import read
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.models.layers import linear
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.model import ServedModel, StageSeconds
from satrap.train import Predictor
from satrap.train.ranking.tower_vectors import TowerVectors
from tests.serve.followed import snapshot, steps
from tests.serve.networks import MODELS, SCHEMA, saved
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, frame


def test_scores_are_those_of_the_predictor_to_the_bit(run: RunFolder, rows: pd.DataFrame) -> None:
    predictor = load_predictor(run, run.recipe())
    model = ServedModel("books", predictor)
    expected = predictor.predict(read(rows, predictor.schema.without_labels(), batch_size=len(rows)))
    found = model.score(model.encode([ScoreRequest(len(rows), {}, plain(rows))]))
    assert found.dtype == expected.dtype == np.float64
    np.testing.assert_array_equal(found, expected)
    assert sorted(model.columns) == sorted(COLUMNS)
    assert model.rows().keys() == {"user", "book", "tags", "words", "hour", "old", "both"}
    model.close()


def test_a_new_model_is_warm_and_has_counted_nothing(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    score = ServedModel.score
    monkeypatch.setattr(ServedModel, "score", lambda self, runs: sizes.append(runs.size) or score(self, runs))
    model = ServedModel("books", load_predictor(run, run.recipe()))
    assert set(sizes) == {2}
    assert model.seconds == StageSeconds()
    assert set(model.looked_up().values()) == {(0, 0)}
    model.close()


def test_rows_take_no_optimizer_state(run: RunFolder) -> None:
    """Adam keeps two numbers beside each weight; a server keeps none."""
    predictor = load_predictor(run, run.recipe())
    [(_, chunk)] = [
        (table, chunk) for table, chunk in predictor.exchange.rows.cut(still=True) if table == "book"
    ]
    assert (chunk.weights.shape[1], chunk.state.shape[1]) == (4, 0)
    assert len(chunk.ids) == frame()["book"].nunique()
    predictor.close()


def test_rows_elsewhere_are_refused() -> None:
    predictor = SimpleNamespace(exchange=None)
    with pytest.raises(ConfigError, match="not in this process"):
        ServedModel("books", predictor)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_what_requests_share_is_computed_once_and_scores_are_those_of_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one request, several, and several with other columns in common; with weights of an update, too."""
    monkeypatch.setattr(linear, "_SMALLEST", 1)
    url = saved(MODELS[name](), tmp_path / "model")
    served, plain_ = (
        ServedModel("m", Predictor.load(url, threads=1)),
        Predictor.load(url, threads=1),
    )
    items = {"item": [1, 2, 3, 4, 5], "age": [0.5, None, 2, 3, 4]}
    one = ScoreRequest(5, {"user": 3}, items)
    other = ScoreRequest(5, {"user": 4, "age": 7}, {"item": [9, 9, 1, 2, 3]})
    whole = ScoreRequest(5, {}, {**items, "user": [1, 2, 3, 4, 99]})
    for requests in ([one], [one, one, other], [one, whole], [one], [one]):
        rows: dict[str, list[Any]] = {"user": [], "item": [], "age": []}
        for asked in requests:
            for column, values in rows.items():
                values += asked.items[column] if column in asked.items else [asked.context[column]] * 5
        data = read(rows, SCHEMA.without_labels(), batch_size=len(rows["user"]))
        found = served.score(served.encode(requests))
        np.testing.assert_allclose(found, plain_.predict(data), rtol=1e-6, atol=1e-6)
    served.close()
    plain_.close()


def test_vectors_are_those_of_the_export_also_after_an_update(towers: RunFolder, rows: pd.DataFrame) -> None:
    """Of requests with shared columns, and joined ones; after an update, rows and network are of its step."""
    first, later, *_ = steps(towers)
    served, series = snapshot(towers, first, known=True), Series(str(towers.checkpoints))
    assert set(served.towers) == {"user", "item"}
    item = served.towers["item"]
    assert (item.name, item.columns, item.outputs) == ("books.item", ["book", "tags", "price"], ["vector"])
    for step in (first, later):
        with closing(load_predictor(towers, towers.recipe(), series.place(step))) as predictor:
            for tower, asked in served.towers.items():
                vectors = TowerVectors(predictor, tower)
                [batch] = read(rows, vectors.schema, batch_size=len(rows)).batches()
                columns = plain(rows[asked.columns])
                context = {name: values[0] for name, values in columns.items() if name in ("user", "book")}
                others = {name: values for name, values in columns.items() if name not in context}
                found = asked.score(
                    asked.encode([ScoreRequest(60, {}, columns), ScoreRequest(60, context, others)])
                )
                assert found.dtype == np.float32
                np.testing.assert_array_equal(found[:60], vectors(batch))
                np.testing.assert_allclose(found[60], found[0], rtol=1e-6, atol=1e-6)
        if step == first:
            deltas = deltas_since(series.place(later), served.version)
            assert deltas is not None
            served.apply(served.prepare(deltas))
            while served.folding:
                served.fold()
    served.close()


def test_the_vector_of_a_history_is_that_of_the_export(tmp_path: Path) -> None:
    event = {"dim": 8, "multi": True, "pooling": "none", "sequence": "history"}
    schema = satrap.Schema(
        [satrap.Label(name="seen", implicit=True)],
        {
            "history": satrap.Categorical(**event, table="film", max_values=4, keep="last"),
            "film": satrap.Categorical(dim=8),
        },
    )
    rows = {"history": [[1, 2, 3], [], [4], [5, 4, 3, 2, 1]], "film": [4, 1, 7, 6]}
    trainer = satrap.Trainer(
        satrap.models.SASRec(schema),
        schema,
        embedding_optimizer=satrap.optim.SGD(lr=0.1),
        mode="sync",
        loss=satrap.losses.SampledSoftmax(),
    )
    trainer.fit(satrap.data.read(rows, schema, batch_size=2), epochs=1)
    trainer.save(str(tmp_path / "model"))
    trainer.close()
    served, predictor = (Predictor.load(str(tmp_path / "model"), threads=1) for _ in range(2))
    model, vectors = ServedModel("m", served), TowerVectors(predictor, "user")
    [batch] = read(rows, vectors.schema, batch_size=4).batches()
    asked = model.towers["user"]
    found = asked.score(asked.encode([ScoreRequest(4, {}, {"history": rows["history"]})]))
    np.testing.assert_array_equal(found, vectors(batch))
    model.close()
    predictor.close()
