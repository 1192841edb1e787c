"""Vectors of items: their dot products are the scores of `satrap predict`, and ids are those of the data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import satrap
from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError, DataError
from satrap.export import export_items
from satrap.export import items as module
from satrap.export.items import _Seen
from satrap.launch.folder.run_folder import RunFolder
from satrap.schema import Schema
from satrap.train import Predictor
from satrap.train.ranking.tower_vectors import TowerVectors
from tests.export.runs import frame, trained
from tests.support.examples import examples

RECIPE = """\
data: {train: rows.FORMAT, split: {modulo: 10, validation: [8], test: [9]}, batch_size: 64, shuffle: true}
labels: [clicked]
features:
  user:  {dim: 4}
  item:  {dim: 4, buckets: 8}
  kind:  {dim: 4}
  price: {numeric: true, transform: log1p}
model: {name: two_tower, item: [item, kind, price], hidden: [8], width: 5}
embedding: {optimizer: {name: adagrad, lr: 0.5}}
dense: {optimizer: {name: adam, lr: 0.01}}
training: {mode: sync, epochs: 1}
"""


def clicks(count: int = 500) -> pd.DataFrame:
    """Ids of items with zeros in front, and some that are missing."""
    random = np.random.default_rng(0)
    items = random.integers(0, 40, count)
    return pd.DataFrame(
        {
            "user": random.integers(0, 30, count),
            "item": [None if item == 39 else f"{item:03}" for item in items],
            "kind": items % 3,
            "price": (items + 1.0) ** 2,
            "clicked": random.integers(0, 2, count),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("items")
    clicks().to_parquet(folder / "rows.parquet")
    (folder / "clicks.yaml").write_text(RECIPE.replace("FORMAT", "parquet"))
    launch.train(load(folder / "clicks.yaml"), str(folder / "run"))
    return RunFolder.open(folder / "run")


def vectors_of(path: Path, column: str = "item") -> dict[Any, npt.NDArray[np.float32]]:
    table = pq.read_table(path)
    assert table.column_names == [column, "vector"]
    kind = table.schema.field("vector").type
    assert (pa.types.is_fixed_size_list(kind), kind.value_type) == (True, pa.float32())
    values = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, kind.list_size)
    return dict(zip(table[column].to_pylist(), values, strict=True))


def test_dot_products_are_the_scores_of_predict(run: RunFolder, tmp_path: Path) -> None:
    assert export_items(run, tmp_path / "items.parquet") == 39
    assert export_items(run, tmp_path / "users.parquet", tower="user") == 30
    items, users = vectors_of(tmp_path / "items.parquet"), vectors_of(tmp_path / "users.parquet", "user")
    rows = clicks().dropna()
    with closing(Predictor.load(str(run.path))) as predictor:
        expected = predictor.predict(satrap.data.read(rows, predictor.schema.without_labels()))[:, 0]
        bias = predictor.model.bias.item()
    scores = [users[user] @ items[item] + bias for user, item in zip(rows["user"], rows["item"], strict=True)]
    np.testing.assert_allclose(1 / (1 + np.exp(-np.array(scores))), expected, rtol=0, atol=1e-5)
    assert np.std(scores) > 0.1


def test_items_are_those_of_the_training_rows_once_each(run: RunFolder, tmp_path: Path) -> None:
    """Also where ids share rows (buckets); an item of other rows only is none."""
    export_items(run, tmp_path / "items.parquet")
    rows = clicks()
    kept = rows[rows.index % 10 < 8]["item"].dropna()
    assert list(vectors_of(tmp_path / "items.parquet")) == list(dict.fromkeys(kept))
    about = pq.read_metadata(tmp_path / "items.parquet").metadata
    assert about[b"satrap.tower"] == b"item"
    with closing(Predictor.load(str(run.path))) as predictor:
        assert int(about[b"satrap.step"]) == predictor.step > 0


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_items_of_a_file_are_its_rows(run: RunFolder, tmp_path: Path, ending: str) -> None:
    """Each row is an item, new ones as well, and ids are written as they are there."""
    rows = pd.DataFrame({"item": ["007", "new", "007"], "kind": [1, 2, 2], "price": [64.0, 3.0, 9.0]})
    source = tmp_path / f"rows.{ending}"
    rows.to_csv(source, index=False) if ending == "csv" else rows.to_parquet(source)
    assert export_items(run, tmp_path / "out.parquet", [str(source)]) == 3
    assert pq.read_table(tmp_path / "out.parquet")["item"].to_pylist() == ["007", "new", "007"]
    export_items(run, tmp_path / "items.parquet")
    first = pq.read_table(tmp_path / "out.parquet")["vector"][0].as_py()
    np.testing.assert_allclose(first, vectors_of(tmp_path / "items.parquet")["007"], rtol=0, atol=1e-6)


def test_the_column_of_ids_may_be_any(run: RunFolder, tmp_path: Path) -> None:
    rows = pd.DataFrame({"item": ["1", "2"], "kind": [1, 2], "price": [1.0, 3.0], "sku": ["a", "b"]})
    rows.to_parquet(tmp_path / "rows.parquet")
    export_items(run, tmp_path / "out.parquet", [str(tmp_path / "rows.parquet")], column="sku")
    assert list(vectors_of(tmp_path / "out.parquet", "sku")) == ["a", "b"]
    with pytest.raises(DataError, match="no column 'skew'"):
        export_items(run, tmp_path / "no.parquet", [str(tmp_path / "rows.parquet")], column="skew")
    export_items(run, tmp_path / "kinds.parquet", column="kind")  # the first item of each kind
    assert sorted(vectors_of(tmp_path / "kinds.parquet", "kind")) == [0, 1, 2]


def test_what_is_read_is_written_soon(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time are more than three groups of rows in memory, however many there are."""
    monkeypatch.setattr(module, "ROWS", 16)
    made, written, waiting = 0, 0, list[int]()
    call, write = TowerVectors.__call__, module.VectorWriter.write

    def counting(self: TowerVectors, batch: Any) -> Any:
        nonlocal made
        made += batch.size
        waiting.append(made - written)
        return call(self, batch)

    def writing(self: Any, table: pa.Table, values: Any) -> None:
        nonlocal written
        write(self, table, values)
        written += len(values)

    monkeypatch.setattr(TowerVectors, "__call__", counting)
    monkeypatch.setattr(module.VectorWriter, "write", writing)
    rows = clicks(1000).dropna()
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    count = export_items(run, tmp_path / "out.parquet", [str(tmp_path / "rows.parquet")])
    assert (count, made, written) == (len(rows),) * 3
    assert max(waiting) <= 3 * 16
    groups = pq.ParquetFile(tmp_path / "out.parquet").metadata
    sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    assert min(sizes[:-1]) >= 16


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), max_size=8))
def test_first_times_are_those_of_a_set(batches: list[list[int]]) -> None:
    seen, known = _Seen(), {0}
    for batch in batches:
        expected = []
        for place, one in enumerate(batch):
            if one not in known:
                expected.append(place)
                known.add(one)
        assert seen.new(np.array(batch, np.uint64)).tolist() == expected


def test_a_model_without_towers_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "dnn")
    with pytest.raises(ConfigError, match=r"DNN has no towers\n.*together.*\n.*two_tower"):
        export_items(run, tmp_path / "items.parquet", ["rows.parquet"])
    assert not (tmp_path / "items.parquet").exists()


def test_a_model_without_its_data_needs_a_file(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "two_tower")
    with pytest.raises(ConfigError, match=r"names no training rows.*\n.*\n.*--input FILE"):
        export_items(run, tmp_path / "items.parquet")
    frame(20).to_parquet(tmp_path / "rows.parquet")
    assert export_items(run, tmp_path / "items.parquet", [str(tmp_path / "rows.parquet")]) == 20


def test_a_tower_of_numbers_needs_the_column_of_ids(tmp_path: Path) -> None:
    features = {"user": satrap.Categorical(dim=4), "price": satrap.Numeric(transform="log1p")}
    schema = Schema(["clicked"], features)
    model = satrap.models.TwoTower(schema, item=["price"], hidden=[4])
    run = trained(tmp_path / "run", schema=schema, model=model)
    frame(20).to_parquet(tmp_path / "rows.parquet")
    source = [str(tmp_path / "rows.parquet")]
    with pytest.raises(ConfigError, match="item has no categorical feature"):
        export_items(run, tmp_path / "items.parquet", source)
    assert export_items(run, tmp_path / "items.parquet", source, column="item") == 20
