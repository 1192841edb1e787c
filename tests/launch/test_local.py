import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from satrap import launch
from satrap.config import load
from satrap.config.keys import DENSE_OPTIMIZERS
from satrap.errors import ConfigError
from satrap.launch.local import DENSE_OPTIMIZERS as KINDS
from satrap.launch.local import dense_optimizer, load_trainer, make_trainer
from satrap.train import Observer, Progress
from tests.launch.runs import RECIPE, frame, lines_of, make_recipe


@pytest.mark.parametrize(
    ("keys", "kind", "expected"),
    [
        (
            "{name: sgd, lr: 0.5, momentum: 0.9, nesterov: true}",
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True},
        ),
        ("{name: adagrad, lr: 0.5, eps: 1e-6}", torch.optim.Adagrad, {"eps": 1e-6}),
        (
            "{name: adam, lr: 0.5, betas: [0.8, 0.9]}",
            torch.optim.Adam,
            {"betas": (0.8, 0.9), "weight_decay": 0.0},
        ),
        ("{name: adamw, lr: 0.5}", torch.optim.AdamW, {"weight_decay": 0.01}),
    ],
)
def test_dense_optimizers(tmp_path: Path, keys: str, kind: type, expected: Mapping[str, object]) -> None:
    recipe = load(make_recipe(tmp_path), [f"dense.optimizer={keys}"])
    made = dense_optimizer(recipe)([torch.nn.Parameter(torch.zeros(2))])
    assert type(made) is kind
    group = made.param_groups[0]
    assert {key: group[key] for key in ("lr", *expected)} == {"lr": 0.5, **expected}


def test_dense_optimizers_are_those_of_the_recipe() -> None:
    assert set(KINDS) == set(DENSE_OPTIMIZERS)


def test_a_trainer_has_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE.replace("[log1p, standardize]", "log1p")), ["training.seed=9"])
    trainer = make_trainer(recipe, recipe.schema())
    assert (trainer.mode, trainer.staleness, trainer.seed) == ("hybrid", 2, 9)
    assert trainer.embedding_optimizer == recipe.embedding_optimizer()
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.close()
    torch.manual_seed(123)
    again = make_trainer(recipe, recipe.schema())
    assert all(torch.equal(a, b) for a, b in zip(weights, again.model.parameters(), strict=True))
    again.close()


class Stop(Observer):
    """Presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            raise KeyboardInterrupt


def test_interrupted_run_keeps_the_model(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["training.patience="])
    with pytest.raises(launch.InterruptedRunError, match="interrupted after step 20"):
        launch.train(recipe, str(tmp_path / "run"), observers=[Stop(20)])
    folder = launch.RunFolder.open(tmp_path / "run")
    assert set(launch.evaluate(folder)) >= {"auc", "logloss"}
    metrics = json.loads(folder.metrics_file.read_text())
    assert metrics["stopped"] == "interrupted"
    assert metrics["auc"] == metrics["validation"]["auc"]
    assert [line["event"] for line in lines_of(folder.history_file)] == ["validation"]


def test_without_test_rows_validation_metrics_are_on_top(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["data.split={modulo: 10, validation: [8]}", "training.epochs=1"])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    assert outcome.test == {}
    assert outcome.metrics["auc"] == outcome.result.metrics["auc"]
    assert launch.evaluate(outcome.folder)["auc"] == pytest.approx(outcome.result.metrics["auc"])


def test_without_any_rows_to_score_evaluate_asks_for_them(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["data.split={modulo: 10}", "training.steps=3"])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    assert (outcome.result.steps, outcome.result.stopped) == (3, "steps")
    assert "auc" not in outcome.metrics
    with pytest.raises(ConfigError, match="names no test or validation rows"):
        launch.evaluate(outcome.folder)
    frame(100, seed=3).to_csv(tmp_path / "more.csv", index=False)
    assert 0 <= launch.evaluate(outcome.folder, [str(tmp_path / "more.csv")])["auc"] <= 1


def test_rows_of_a_trained_model_are_kept_as_its_recipe_says_or_as_is_set(tmp_path: Path) -> None:
    rows = frame(3000)
    rows["user"] = [f"u{i}" for i in range(3000)]
    tier = f"embedding.tier={{path: {tmp_path}, size: 160000}}"
    bounds = ["embedding.memory=330000", "embedding.eviction={policy: lru}", tier]
    outcome = launch.train(load(make_recipe(tmp_path, rows=rows), bounds), str(tmp_path / "run"))
    folder = outcome.folder
    trainer = load_trainer(folder, folder.recipe())
    found = trainer.statistics()
    assert found["rows"] > found["tier"]["rows"] > 1500
    trainer.close()
    free = ["embedding.memory=null", "embedding.eviction=null", "embedding.tier=null"]
    metrics = launch.evaluate(folder, overrides=free)
    assert launch.evaluate(folder) == metrics == outcome.test
    assert launch.evaluate(folder, overrides=["embedding.tier=null"]) == metrics  # all fit in memory
    small = ["embedding.tier=null", "embedding.memory=120000"]
    for output, overrides in (("a.csv", free), ("b.csv", ())):
        launch.predict(folder, [str(tmp_path / "rows.csv")], tmp_path / output, overrides)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    for too_small in (small, ["embedding.tier.size=40000", "embedding.memory=250000"]):
        with pytest.raises(ConfigError, match="rows of the trained model do not fit") as caught:
            launch.evaluate(folder, overrides=too_small)
        assert "no room for" in caught.value.why
        assert "--set embedding.memory=SIZE" in caught.value.fix
    with pytest.raises(ConfigError, match=r"model\.name of a trained model cannot be set"):
        launch.evaluate(folder, overrides=["model.name=dnn"])


def test_notices(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE + "about: {md5: {rows.csv: '0'}}\n"), ["training.steps=1"])
    said: list[str] = []
    launch.train(recipe, str(tmp_path / "run"), notice=said.append)
    assert len(said) == 1
    assert "rows.csv is not the file the figures in the recipe are for" in said[0]


def test_two_labels(tmp_path: Path) -> None:
    text = RECIPE.replace("[clicked]", "[clicked, {name: dear, column: price, threshold: 10}]")
    outcome = launch.train(load(make_recipe(tmp_path, text)), str(tmp_path / "run"))
    assert {"auc", "clicked/auc", "dear/auc"} <= set(outcome.metrics)
    frame(50).drop(columns="clicked").to_csv(tmp_path / "new.csv", index=False)
    assert launch.predict(outcome.folder, [str(tmp_path / "new.csv")], tmp_path / "out.csv") == 50
    header = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert header.endswith('"clicked_probability","dear_probability"')
