"""The exported network of every model, run where there is no satrap, scores as `satrap predict` does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.export import export_network
from satrap.export.network import described, exported
from satrap.launch.folder.run_folder import RunFolder
from satrap.schema import Label, Schema
from satrap.train import Predictor
from tests.export.runs import LABELS, frame, inputs_of, schema_of, trained
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES
from tests.models.sequence.histories import SCHEMA as HISTORY

SIZES = (1, 2, 64)
NAMES = [name for name in models.names() if name not in (*HISTORIES, *NEXT_ITEM)]

ALONE = """
import sys
import numpy, torch
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    program = torch.export.load(folder + "/network.pt2").module()
    for size in (1, 2, 64):
        given = dict(numpy.load(f"{folder}/inputs-{size}.npz"))
        found = program(**{name: torch.from_numpy(values) for name, values in given.items()})
        numpy.save(f"{folder}/found-{size}.npy", found.numpy())
assert not [name for name in sys.modules if name.startswith("satrap")]
"""
"""Scores the inputs that it finds, with PyTorch alone."""


def prepared(run: RunFolder, folder: Path) -> dict[int, Any]:
    """Export a run, write inputs of each size, and return what they must give."""
    folder.mkdir()
    about = export_network(run, folder / "network.pt2")
    assert json.loads((folder / "network.json").read_text()) == json.loads(json.dumps(about))
    expected = {}
    with closing(Predictor.load(str(run.path))) as predictor:
        assert about["step"] == predictor.step > 0
        for size in SIZES:
            rows = frame(size, seed=size)
            np.savez(folder / f"inputs-{size}.npz", **inputs_of(about, predictor, rows))
            data = satrap.data.read(rows, predictor.schema.without_labels(), batch_size=size)
            expected[size] = predictor.predict(data)
            assert expected[size].dtype == about["outputs"][0]["dtype"]
    return expected


def scored_alone(folders: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, *map(str, folders)],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def scored_here(folders: list[Path]) -> None:
    for folder in folders:
        program = torch.export.load(folder / "network.pt2").module()
        for size in SIZES:
            given = {name: torch.from_numpy(v) for name, v in np.load(folder / f"inputs-{size}.npz").items()}
            np.save(folder / f"found-{size}.npy", program(**given).numpy())


def check(runs: Mapping[str, RunFolder], folder: Path, score: Callable[[list[Path]], None]) -> None:
    expected = {name: prepared(run, folder / name) for name, run in runs.items()}
    score([folder / name for name in runs])
    for name in runs:
        for size in SIZES:
            found = np.load(folder / name / f"found-{size}.npy")
            np.testing.assert_allclose(found, expected[name][size], rtol=0, atol=1e-5, err_msg=name)
        assert np.std(expected[name][64]) > 0.01  # they differ, so the columns matter


def test_programs_score_as_satrap_does(tmp_path: Path) -> None:
    """Rows with more columns than the schema's, products of pairs, and columns taken out of the numbers."""
    runs = {name: trained(tmp_path / f"{name}-run", name) for name in ("deepfm", "dlrm", "two_tower")}
    check(runs, tmp_path, scored_here)


@pytest.mark.cluster
def test_programs_of_all_models_score_alike_without_satrap(tmp_path: Path) -> None:
    runs = {name: trained(tmp_path / f"{name}-run", name) for name in NAMES}
    assert len(runs) > 19
    check(runs, tmp_path, scored_alone)


@pytest.mark.cluster
def test_programs_of_any_labels(tmp_path: Path) -> None:
    numbers = Label(name="rating", kind="regression")
    schema = schema_of(["clicked", numbers, Label(name="mood", kind="multiclass", classes=3)])
    schema = satrap.data.measure(schema, satrap.data.read(frame(), schema))
    check({"ple": trained(tmp_path / "run", "ple", schema)}, tmp_path, scored_here)
    about = json.loads((tmp_path / "ple" / "network.json").read_text())
    assert about["outputs"] == [
        {
            "name": "predictions",
            "dtype": "float64",
            "shape": ["batch", 5],
            "columns": [
                "clicked_probability", "rating_prediction",
                "mood_probability_0", "mood_probability_1", "mood_probability_2",
            ],
        }
    ]  # fmt: skip


def test_the_description_says_what_columns_are(tmp_path: Path) -> None:
    schema = schema_of()
    model = models.create("deepfm", schema)
    about = described(model, schema)
    assert about["inputs"] == [
        {
            "name": "vectors",
            "dtype": "float32",
            "shape": ["batch", 27],
            "columns": [
                {"feature": "user", "table": "user", "pooling": "one", "start": 0, "stop": 9},
                {"feature": "item", "table": "item", "pooling": "one", "start": 9, "stop": 18},
                {"feature": "tags", "table": "tags", "pooling": "mean", "start": 18, "stop": 27},
            ],
        },
        {
            "name": "numeric",
            "dtype": "float32",
            "shape": ["batch", 4],
            "columns": [
                {"feature": "price", "start": 0, "stop": 1},
                {"feature": "picture", "start": 1, "stop": 4},
            ],
        },
    ]
    assert about["model"]["name"] == "deepfm"
    assert Schema.from_dict(json.loads(json.dumps(about["schema"]))) == schema


@pytest.mark.parametrize("absent", ["vectors", "numeric"])
def test_an_input_that_a_model_does_not_have_is_left_out(absent: str) -> None:
    kinds = satrap.Numeric if absent == "vectors" else satrap.Categorical
    features = {"a": satrap.Numeric(), "b": satrap.Numeric()}
    if absent == "numeric":
        features = {"a": kinds(dim=4), "b": kinds(dim=4)}
    schema = Schema(["y"], features)
    model = models.create("dnn", schema, hidden=[4])
    [given] = described(model, schema)["inputs"]
    [value] = {"vectors", "numeric"} - {absent}
    assert given["name"] == value
    program = exported(model, schema).module()
    assert program(**{value: torch.zeros(5, given["shape"][1])}).shape == (5, 1)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_network_computes_in_the_precision_of_its_training(precision: str) -> None:
    schema = schema_of()
    torch.manual_seed(0)
    model = models.create("dlrm", schema).eval()
    given = {"vectors": torch.randn(7, 24), "numeric": torch.randn(7, 4)}
    found = exported(model, schema, precision).module()(**given)
    pooled = dict(zip(schema.categorical, given["vectors"].split(8, dim=1), strict=True))
    batch = EmbeddedBatch(7, pooled, given["numeric"])
    with torch.no_grad(), torch.autocast("cpu", dtype=getattr(torch, precision)):
        expected = model(batch).float().sigmoid()
    with torch.no_grad():
        wide = model(batch).sigmoid()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not torch.equal(found, wide)


@pytest.mark.parametrize("name", HISTORIES)
def test_a_network_of_histories_is_refused_by_name(name: str) -> None:
    model = models.create(name, HISTORY)
    what = rf"{name.upper()} cannot be exported: it reads seen, genre, rating event by"
    with pytest.raises(ConfigError, match=what):
        exported(model, HISTORY)


class Counting(nn.Module):
    """A network whose steps depend on values."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.head = nn.Linear(schema.categorical["user"].dim, 1)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        found: Tensor = self.head(batch["user"])
        return found * 2 if float(found.detach().sum()) > 0 else found


def test_a_network_that_pytorch_cannot_export_is_refused_by_name() -> None:
    schema = schema_of()
    with pytest.raises(
        ConfigError, match=r"Counting cannot be exported: .*\n.*do not depend on their values"
    ):
        exported(Counting(schema), schema)


class Linear(nn.Module):
    """A network of one's own."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.head = nn.Linear(schema.categorical["user"].dim, 1)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        logits: Tensor = self.head(batch["user"])
        return logits.squeeze(1)  # one output may be without its column


def test_a_network_of_your_own_is_exported() -> None:
    schema = schema_of()
    model = Linear(schema)
    vectors = torch.randn(5, 24)
    found = exported(model, schema).module()(vectors=vectors, numeric=torch.zeros(5, 4))
    torch.testing.assert_close(found, model.head(vectors[:, :8]).detach().sigmoid())
    assert described(model, schema)["model"] == {"class": "Linear"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("network") / "run")


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        ("network.onnx", None, r"the format of the output .*\n.*\.pt2"),
        ("network.pt2", "network.pt2", "already exists"),
        ("network.pt2", "network.json", "already exists"),
        ("no/network.pt2", None, "folder of the output does not exist"),
    ],
)
def test_outputs_that_cannot_be_are_refused(
    run: RunFolder, tmp_path: Path, name: str, there: str | None, said: str
) -> None:
    if there:
        (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=said):
        export_network(run, tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"] * (there is not None)


def test_a_failed_write_leaves_nothing(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.export, "save", full)
    with pytest.raises(OSError, match="No space left"):
        export_network(run, tmp_path / "network.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_there_is_refused(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no snapshot or version of step 5"):
        export_network(run, tmp_path / "network.pt2", step=5)


def test_a_mapping_is_what_description_and_inputs_share() -> None:
    """The description alone is enough to place columns: no column is missing, none is taken twice."""
    for name in NAMES:
        schema = schema_of(LABELS.get(name, ["clicked"]))
        options: Mapping[str, Any] = {"item": ["item"]} if name == "two_tower" else {}
        for given in described(models.create(name, schema, **options), schema)["inputs"]:
            taken = [place for one in given["columns"] for place in range(one["start"], one["stop"])]
            assert taken == list(range(given["shape"][1])), name
