"""Generated data has the shape, skew and labels that it promises; MLPerf's recipes read it and learn."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

import satrap
from satrap import models
from satrap.config import load
from tests.cli.command import process

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "dlrm" / "generate.py"
RECIPES = [ROOT / "examples" / "recipes" / f"{name}.yaml" for name in ("dlrm_mlperf", "dlrm_dcnv2_mlperf")]
HOT = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with small blocks."""
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BLOCK", 128)
    return module


def read(script: ModuleType, folder: Path, *options: str) -> dict[str, pa.Table]:
    """Run the script; return its files by name without ending."""
    script.generate(script.parse([str(folder), *options]))
    return {path.stem: parquet.read_table(path) for path in sorted(folder.iterdir())}


def ids_of(column: pa.ChunkedArray) -> np.ndarray:
    """int32[rows, ids] of one feature."""
    values = column.combine_chunks()
    return (values.flatten() if pa.types.is_list(values.type) else values).to_numpy().reshape(len(column), -1)


@pytest.mark.parametrize("hot", [HOT, [1] * 26])
def test_the_files_have_the_shape_of_mlperf(script: ModuleType, tmp_path: Path, hot: list[int]) -> None:
    more = ["--no-multi-hot"] if max(hot) == 1 else []
    parts = read(script, tmp_path, "--rows", "1000", "--files", "3", "--scale", "1e-4", *more)
    rows = {name: len(table) for name, table in parts.items()}
    assert rows == {"train-000": 333, "train-001": 333, "train-002": 334, "validation": 100, "test": 100}
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    kinds = [pa.int8(), *[pa.int32()] * 13, *(pa.list_(pa.int32()) if h > 1 else pa.int32() for h in hot)]
    table = pa.concat_tables([parts[f"train-00{i}"] for i in range(3)])
    assert table.schema.names == names
    assert [pa.list_(t.value_type) if pa.types.is_list(t) else t for t in table.schema.types] == kinds
    tables = dict.fromkeys(range(26), 3) | {0: 4000, 9: 4000, 19: 4000, 20: 4000, 21: 4000}
    tables |= {1: 4, 10: 307, 11: 41, 22: 59}
    for i, count in enumerate(hot):
        ids = ids_of(table[f"C{i + 1}"])
        assert ids.shape == (1000, count)
        assert ids.min() == 0
        assert tables[i] // 8 < ids.max() < tables[i]
    assert 0.2 < np.mean(table["label"].to_numpy()) < 0.35
    assert min(table[f"I{i}"].to_numpy().min() for i in range(1, 14)) == 0


def test_rows_do_not_depend_on_the_number_of_files_and_rows(script: ModuleType, tmp_path: Path) -> None:
    one = read(script, tmp_path / "one", "--rows", "300", "--files", "1")
    three = read(script, tmp_path / "three", "--rows", "300", "--files", "3")
    fewer = read(script, tmp_path / "fewer", "--rows", "200", "--files", "1")
    assert pa.concat_tables([three[f"train-00{i}"] for i in range(3)]) == one["train-000"]
    assert one["train-000"].slice(0, 200) == fewer["train-000"]
    assert (one["test"], one["validation"]) == (three["test"], three["validation"])
    parts = [one["train-000"].slice(0, 30), one["train-000"].slice(128, 30), one["validation"], one["test"]]
    parts.append(read(script, tmp_path / "seed", "--rows", "300", "--seed", "2")["test"])
    for i, a in enumerate(parts):  # no part repeats another
        assert all(a["C21"] != b["C21"] for b in parts[:i])


def test_each_doubling_of_the_id_has_the_weight_of_the_power_law(script: ModuleType) -> None:
    uniform = np.random.default_rng(0).random(400_000)
    for exponent in (0.8, 1.0, 1.3):
        ids = script.zipf(uniform, 2**20 - 1, exponent)
        octaves = np.bincount(np.log2(ids + 1.0).astype(int), minlength=20)
        weights = 2.0 ** ((1 - exponent) * np.arange(20))
        expected = len(ids) * weights / weights.sum()
        assert np.abs(octaves - expected).max() < 5 * expected.max() ** 0.5
        for count in (3, 1000, 40_000_000):
            ends = script.zipf(np.array([0.0, np.nextafter(1.0, 0.0)]), count, exponent)
            assert ends.tolist() == [0, count - 1]


def test_labels_can_be_learned_from_ids(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "BLOCK", 4096)
    options = script.parse(["--scale", "1e-5"])
    inputs, labels = [], []
    for number in range(2):
        table = script.block(number, 0, options)
        ids = np.concatenate([ids_of(table[f"C{i}"]) + 1000 * i for i in range(1, 27)], axis=1)
        rows = np.repeat(np.arange(4096, dtype=np.int32), ids.shape[1])
        inputs.append(sparse.csr_array((np.ones(ids.size), (rows, ids.ravel())), shape=(4096, 27_000)))
        labels.append(table["label"].to_numpy())
    model = LogisticRegression(C=0.01, solver="liblinear").fit(inputs[0], labels[0])
    assert roc_auc_score(labels[1], model.decision_function(inputs[1])) > 0.65


@pytest.mark.parametrize("wrong", ["--rows 9", "--files 0", "--files 200001", "--scale 0", "--scale 51"])
def test_impossible_options_are_refused(script: ModuleType, wrong: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.parse(wrong.split())


def test_files_of_an_earlier_run_are_not_mixed_in(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "train-009.parquet").touch()
    with pytest.raises(SystemExit, match="has Parquet files already"):
        script.generate(script.parse([str(tmp_path)]))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_read_the_files(script: ModuleType, tmp_path: Path, recipe: Path) -> None:
    schema = load(recipe).schema()
    assert [f.multi for f in schema.categorical.values()] == [hot > 1 for hot in HOT]
    assert {(f.dim, f.pooling) for f in schema.categorical.values()} == {(128, "sum")}
    for option, hot in (("--multi-hot", HOT), ("--no-multi-hot", [1] * 26)):
        folder = tmp_path / option
        table = read(script, folder, "--rows", "20", "--files", "1", option)["train-000"]
        [batch] = satrap.data.read(folder / "train-000.parquet", schema, batch_size=20)
        assert [len(batch.ids[f"C{i}"].values) for i in range(1, 27)] == [20 * h for h in hot]
        numbers = np.stack([table[f"I{i}"].to_numpy() for i in range(1, 14)], axis=1)
        np.testing.assert_allclose(batch.numeric, np.log1p(numbers), rtol=1e-6)


def test_the_recipes_have_the_layers_of_mlperf() -> None:
    bottom, top = [(13, 512), (512, 256), (256, 128)], [(1024, 1024), (1024, 512), (512, 256), (256, 1)]
    vectors = 27 * 128
    cross = [(vectors, 512), (512, vectors)] * 3
    expected = [[*bottom, (27 * 26 // 2 + 128, 1024), *top], [*bottom, *cross, (vectors, 1024), *top]]
    for path, layers in zip(RECIPES, expected, strict=True):
        recipe = load(path)
        sections = recipe.sections.model
        model = models.create(sections.name, recipe.schema(), **(sections.model_extra or {}))
        found = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
        assert found == layers


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_learn(tmp_path: Path, recipe: Path) -> None:
    """Small tables and batches, so that a few thousand rows are enough."""
    data = tmp_path / "data" / "dlrm"
    subprocess.run([sys.executable, SCRIPT, data, "--rows", "20000", "--scale", "1e-5"], check=True)
    (tmp_path / recipe.name).write_text(recipe.read_text(encoding="utf-8"), encoding="utf-8")
    answer = process("train", recipe.name, "--set", "data.batch_size=256", "--output", "run", folder=tmp_path)
    assert answer.code == 0, answer.err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test"]["auc"] > 0.65
