"""Runs with the user's own model and loss, and the copies that a run folder keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import satrap
from satrap import launch
from satrap.config import load
from satrap.dense.memory.initial_weights import build
from satrap.errors import ConfigError, TrainingError
from satrap.launch import code_snapshot
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.network import make_model
from satrap.runtime import user_code
from satrap.train import Predictor
from tests.cli.command import process
from tests.launch.runs import RECIPE, frame, make_recipe

MODEL = """\
from torch import nn
from torch.nn import functional as F

from layers import tower


class MyNet(nn.Module):
    def __init__(self, schema, hidden=(8,)):
        super().__init__()
        width = sum(feature.dim for feature in schema.categorical.values()) + len(schema.numeric)
        self.tower = tower(width, hidden)

    def forward(self, batch):
        return self.tower(batch.flat())


def half_loss(logits, batch):
    return F.binary_cross_entropy_with_logits(logits, batch.labels) / 2
"""

LAYERS = """\
from torch import nn


def tower(width, hidden):
    sizes = [width, *hidden]
    pairs = zip(sizes, sizes[1:])
    inner = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(sizes[-1], 1))
"""

OWN = RECIPE.replace("{name: dnn, hidden: [8]}", "{class: 'my_model.py:MyNet', hidden: [8]}").replace(
    "hybrid, staleness: 2", "sync"
)


def make_own(folder: Path, text: str = OWN, model: str = MODEL) -> Path:
    recipe = make_recipe(folder, text, frame(1000))  # 8 steps in a pass
    (folder / "my_model.py").write_text(model, encoding="utf-8")
    (folder / "layers.py").write_text(LAYERS, encoding="utf-8")
    return recipe


def shared(text: str) -> str:
    return text.replace("epochs: 2", "epochs: 2, loss: 'my_model.py:half_loss'")


def refused(path: Path, *overrides: str, kind: type[Exception] = ConfigError) -> ConfigError:
    with pytest.raises(kind) as caught:
        launch.train(load(path, overrides), str(path.parent / "run"))
    assert str(caught.value).count("\n") <= 3
    assert isinstance(caught.value, ConfigError | TrainingError)
    return caught.value  # type: ignore[return-value]


@pytest.mark.cluster
def test_an_own_model_trains_as_in_plain_python(tmp_path: Path) -> None:
    recipe = load(make_own(tmp_path, shared(OWN)))
    outcome = launch.train(recipe, str(tmp_path / "run"))

    schema = satrap.data.measure(recipe.schema(), _rows(recipe.schema(), tmp_path, (0, 1, 2, 3, 4, 5, 6, 7)))

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, batch: satrap.EmbeddedBatch) -> torch.Tensor:
            out: torch.Tensor = self.tower(batch.flat())
            return out

    trainer = satrap.Trainer(
        build(Plain, seed=1),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.1),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        mode="sync",
        store=satrap.store.StoreConfig(seed=1),
        training=satrap.train.TrainingOptions(plateau=0.1, patience=2),
        loss=lambda logits, batch: nn.functional.binary_cross_entropy_with_logits(logits, batch.labels) / 2,
    )
    train = _rows(schema, tmp_path, (0, 1, 2, 3, 4, 5, 6, 7)).with_options(shuffle=True, seed=1)
    result = trainer.fit(train, validation=_rows(schema, tmp_path, (8,)), epochs=2)
    assert result.metrics["logloss"] == outcome.result.metrics["logloss"]
    trainer.close()


def _rows(schema: satrap.Schema, folder: Path, keep: tuple[int, ...]) -> satrap.data.Dataset:
    split = satrap.data.RowSplit(modulo=10, keep=keep)
    return satrap.data.read(str(folder / "rows.csv"), schema, batch_size=100, rows=split)


def test_the_run_folder_scores_without_the_originals_and_elsewhere(tmp_path: Path) -> None:
    launch.train(load(make_own(tmp_path / "here", shared(OWN))), str(tmp_path / "here/run"))
    before = launch.evaluate(RunFolder.open(tmp_path / "here/run"))
    shutil.move(tmp_path / "here/run", tmp_path / "moved")
    for name in ("my_model.py", "layers.py"):
        (tmp_path / "here" / name).unlink()
    moved = RunFolder.open(tmp_path / "moved")
    assert launch.evaluate(moved) == before
    assert launch.predict(moved, [str(tmp_path / "here/rows.csv")], tmp_path / "scores.csv") == 1000

    trainer = satrap.Trainer.load(str(tmp_path / "moved"))
    assert user_code.reference_of(trainer.loss) == "code/my_model.py:half_loss"
    assert user_code.reference_of(type(trainer.model)) == "code/my_model.py:MyNet"
    trainer.close()
    with pytest.raises(ConfigError, match=r"not one of satrap.models"):
        satrap.Trainer.load(str(tmp_path / "moved/model"))  # no run folder: its code is not run
    recipe = moved.recipe()
    predictor = Predictor.load(str(tmp_path / "moved/model"), lambda schema: make_model(recipe, schema))
    scores = predictor.predict(satrap.data.read(str(tmp_path / "here/rows.csv"), predictor.schema))
    written = np.loadtxt(tmp_path / "scores.csv", delimiter=",", skiprows=1, usecols=-1, dtype=np.float32)
    np.testing.assert_allclose(scores[:, 0], written, rtol=1e-6)
    predictor.close()


METRICS = """\
import numpy as np


def brier(labels, predictions, weights):
    return np.average((labels - predictions) ** 2, weights=weights)


brier.higher_is_better = False
"""


def with_metrics(folder: Path, **more: str) -> Path:
    keys = "".join(f", {key}: {value}" for key, value in more.items())
    path = make_own(folder, RECIPE.replace("epochs: 2", f"epochs: 2, metrics: ['my_metrics.py:brier']{keys}"))
    (folder / "my_metrics.py").write_text(METRICS, encoding="utf-8")
    return path


def brier_of(folder: RunFolder, rows: Path, out: Path) -> float:
    launch.predict(folder, [str(rows)], out)
    table = pd.read_csv(out)
    return float(((table["clicked"] - table["clicked_probability"]) ** 2).mean())


def test_a_metric_of_the_users_own_is_in_all_records_and_scores_elsewhere(tmp_path: Path) -> None:
    path = with_metrics(tmp_path / "here", monitor="brier")
    outcome = launch.train(load(path), str(tmp_path / "here/run"))
    found = json.loads(outcome.folder.metrics_file.read_text())
    assert found["brier"] == found["test"]["brier"] == outcome.test["brier"]
    lines = [json.loads(line) for line in outcome.folder.history_file.read_text().splitlines()]
    assert [v["brier"] for v in lines if v["event"] == "validation"] == [
        v["brier"] for v in outcome.result.history
    ]
    shutil.move(tmp_path / "here/run", tmp_path / "moved")
    (tmp_path / "here/my_metrics.py").unlink()
    moved, rows = RunFolder.open(tmp_path / "moved"), tmp_path / "here/rows.csv"
    assert launch.evaluate(moved)["brier"] == outcome.test["brier"]
    expected = brier_of(moved, rows, tmp_path / "scores.csv")
    assert launch.evaluate(moved, [str(rows)])["brier"] == pytest.approx(expected, rel=1e-5)
    trainer = satrap.Trainer.load(str(tmp_path / "moved"))
    data = satrap.data.read(str(rows), trainer.schema)
    assert trainer.evaluate(data)["brier"] == pytest.approx(expected, rel=1e-5)
    trainer.close()


@pytest.mark.cluster
def test_workers_agree_on_a_metric_of_the_users_own(tmp_path: Path) -> None:
    more = ["exchange=servers", "workers=2", "shards=2", "wire.forward=float32"]
    recipe = load(with_metrics(tmp_path), [f"cluster.{setting}" for setting in more])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    assert outcome.test["brier"] == pytest.approx(launch.evaluate(outcome.folder)["brier"], rel=1e-6)


def test_errors_about_metrics_name_the_line(tmp_path: Path) -> None:
    path = with_metrics(tmp_path)
    assert "did you mean 'brier'?" in refused(path, "training.monitor=brir").fix
    missing = refused(path, f"training.metrics=[{tmp_path}/my_metrics.py:brir]")
    assert "did you mean 'brier'?" in missing.fix
    unknown = refused(path, "training.metrics=[sklearn.metrics:roc_auc_score]")
    assert (unknown.what, unknown.where) == (
        "metrics: roc_auc_score has an unknown argument 'y_true'",
        "--set training.metrics",
    )
    (tmp_path / "my_metrics.py").write_text(METRICS + "\n\ndef no(labels):\n    return labels['a']\n")
    failed = refused(path, f"training.metrics=[{tmp_path}/my_metrics.py:no]", kind=TrainingError)
    assert failed.where == f"{tmp_path}/my_metrics.py:12, in no"


def test_resuming_uses_the_copy_and_says_that_the_original_changed(tmp_path: Path) -> None:
    path = make_own(tmp_path / "whole", shared(OWN))
    overrides = ["checkpoint.every_steps=5"]
    whole = launch.train(load(path, overrides), str(tmp_path / "whole/run"))
    path = make_own(tmp_path / "half", shared(OWN))
    launch.train(load(path, [*overrides, "training.steps=10"]), str(tmp_path / "half/run"))
    (tmp_path / "half/my_model.py").write_text("raise ValueError\n", encoding="utf-8")
    said: list[str] = []
    resumed = launch.train(load(path, overrides), str(tmp_path / "half/run"), resume=True, notice=said.append)
    assert resumed.result.metrics == whole.result.metrics
    [note] = [line for line in said if "has changed; the run uses" in line]
    assert str(tmp_path / "half/my_model.py") in note
    assert note.endswith(str(tmp_path / "half/run/code/my_model.py"))
    assert "class: code/my_model.py:MyNet" in (tmp_path / "half/run/recipe.yaml").read_text()


def test_resuming_with_another_model_is_refused(tmp_path: Path) -> None:
    path = make_own(tmp_path)
    launch.train(load(path, ["training.steps=5", "checkpoint.every_steps=5"]), str(tmp_path / "run"))
    (tmp_path / "other.py").write_text(MODEL, encoding="utf-8")
    path.write_text(OWN.replace("my_model.py", "other.py"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"differs from the run's recipe in model\.class"):
        launch.train(load(path), str(tmp_path / "run"), resume=True)


def test_a_copy_that_was_changed_is_told(tmp_path: Path) -> None:
    folder = RunFolder.claim(load(make_own(tmp_path)), tmp_path / "run")
    assert code_snapshot.changed(folder.path) == []
    with (folder.code / "layers.py").open("a") as file:
        file.write("# changed\n")
    assert code_snapshot.changed(folder.path) == [
        f"note: {folder.code}/layers.py has changed since the run began"
    ]


def test_two_folders_of_code_keep_their_names_apart(tmp_path: Path) -> None:
    path = make_own(tmp_path, OWN.replace("epochs: 2", "epochs: 2, loss: 'more/my_model.py:other_loss'"))
    (tmp_path / "more").mkdir()
    (tmp_path / "more/my_model.py").write_text("def other_loss(logits, batch):\n    return logits.mean()\n")
    folder = RunFolder.claim(load(path), tmp_path / "run")
    recipe = folder.recipe()
    assert [reference.removeprefix(f"{folder}/") for reference in recipe.own_code().values()] == [
        "code/my_model.py:MyNet",
        "code-2/my_model.py:other_loss",
    ]
    assert set(json.loads((folder.path / code_snapshot.ORIGINS).read_text())) == {
        "code/my_model.py",
        "code/layers.py",
        "code-2/my_model.py",
    }
    folder.discard()
    assert not folder.path.exists()


def test_a_module_is_named_and_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_own(tmp_path, OWN.replace("my_model.py:MyNet", "my_model:MyNet"))
    monkeypatch.syspath_prepend(tmp_path)
    outcome = launch.train(load(path, ["training.epochs=1"]), str(tmp_path / "run"))
    assert launch.evaluate(outcome.folder) == outcome.test
    assert not outcome.folder.code.exists()


def test_errors_name_key_file_and_argument(tmp_path: Path) -> None:
    path = make_own(tmp_path)
    own = "model.class"
    error = refused(path, f"{own}={tmp_path}/my_modell.py:MyNet")
    assert "No such file" in error.what
    assert error.where == f"{tmp_path}/my_modell.py"
    assert refused(path, f"{own}={tmp_path}/my_model.py:MyNt").fix.startswith("did you mean 'MyNet'?")
    assert "is not a model class" in refused(path, f"{own}={tmp_path}/my_model.py:half_loss").what
    error = refused(path, "model.hiden=[8]")
    assert (error.what, error.where) == ("MyNet has no argument 'hiden'", "--set model.hiden")
    assert error.fix == "did you mean 'hidden'? allowed: hidden"
    error = refused(path, "model.hidden=[wide]")
    assert error.what.startswith("MyNet cannot be constructed: TypeError")
    assert error.where.startswith(f"{tmp_path}/layers.py:")
    assert not (tmp_path / "run").exists()
    error = refused(path, f"training.loss={tmp_path}/my_model.py:half_los")
    assert "did you mean 'half_loss'?" in error.fix


def test_an_error_in_forward_names_the_line(tmp_path: Path) -> None:
    path = make_own(tmp_path, model=MODEL.replace("self.tower(batch.flat())", "self.twoer(batch.flat())"))
    error = refused(path, kind=TrainingError)
    assert "AttributeError: 'MyNet' object has no attribute 'twoer'" in error.what
    assert error.where == f"{tmp_path}/my_model.py:14, in forward"


@pytest.mark.cluster
def test_workers_import_the_same_file(tmp_path: Path) -> None:
    make_own(tmp_path, shared(OWN))
    several = ["--set", "cluster.exchange=servers", "--set", "cluster.workers=2", "--set", "cluster.shards=2"]
    answer = process("train", "clicks.yaml", "--output", "run", *several, folder=tmp_path)
    assert answer.code == 0, answer.err
    assert process("evaluate", "run", folder=tmp_path).code == 0
    broken = MODEL.replace("return self.tower(batch.flat())", "return self.tower(batch.flat()[:, 1:])")
    make_own(tmp_path, model=broken)
    answer = process("train", "clicks.yaml", "--output", "run2", *several, folder=tmp_path)
    answer.assert_refused(f"{tmp_path}/my_model.py:14, in forward", "cannot be multiplied", code=1)


@pytest.mark.cluster
def test_a_run_goes_on_from_snapshots_elsewhere_with_the_code_of_the_recipe(tmp_path: Path) -> None:
    path = make_own(tmp_path, shared(OWN))
    overrides = [f"checkpoint.url={tmp_path}/snapshots", "checkpoint.every_steps=5"]
    whole = launch.train(load(path), str(tmp_path / "whole"))
    launch.train(load(path, [*overrides, "training.steps=10"]), str(tmp_path / "lost"))
    shutil.rmtree(tmp_path / "lost")
    resumed = launch.train(load(path, overrides), str(tmp_path / "new"), resume=True)
    assert resumed.result.metrics == whole.result.metrics
    assert (tmp_path / "new/code/my_model.py").read_text() == MODEL
    assert launch.evaluate(resumed.folder) == resumed.test
