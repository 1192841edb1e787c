import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, mean_absolute_error, mean_squared_error, roc_auc_score

from satrap import launch
from satrap.batch import Batch
from satrap.checkpoint import Series
from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.datasets import open_part
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_predictor, scored_tables
from satrap.schema import Label
from satrap.tools.prepare import prepare
from satrap.train import Observer, Predictor, Progress, Trainer
from tests.launch.runs import RECIPE, frame, make_recipe


class Half:
    """A trainer that reads ahead and predicts `row / 1000`."""

    class schema:  # noqa: N801
        labels = (Label(name="liked"),)

    def predict_batches(self, batches: Iterable[Batch]) -> Iterator[npt.NDArray[np.float32]]:
        for batch in list(batches):
            assert batch.numeric is not None
            yield batch.numeric / 1000


class Rows:
    def tables_and_batches(self, columns: list[str]) -> Iterator[tuple[pa.Table, Batch]]:
        for start in range(0, 30, 10):
            values = np.arange(start, start + 10, dtype=np.float32)
            yield pa.table({"row": values}), Batch(10, {}, numeric=values[:, None])


def test_each_row_gets_its_own_probability_however_far_the_trainer_reads_ahead() -> None:
    tables, values = zip(*scored_tables(Half(), Rows(), ["row"]), strict=True)  # type: ignore[arg-type]
    rows = pa.concat_tables(tables)["row"].to_numpy()
    assert len(rows) == 30
    assert np.allclose(np.concatenate(values)[:, 0] * 1000, rows)


def test_labels_far_from_zero_are_exact(tmp_path: Path) -> None:
    """Time stamps near 1.7e9, of which float32 has only every 128th."""
    table = frame(600)
    drawn = np.random.default_rng(3).normal(0, 40, 600)
    table["seen"] = 1_700_000_000 + (300 * table.clicked + drawn).round(3)
    table["again"] = table.seen
    label = "{name: seen, kind: regression, start_at_mean: true}"
    numbers = "  again: {numeric: true, transform: standardize}"
    text = RECIPE.replace("[clicked]", f"[{label}]").replace("  price:", f"{numbers}\n  price:")
    path = make_recipe(tmp_path, text.replace("epochs: 2", "epochs: 6"), table)
    run = launch.train(load(path), str(tmp_path / "run")).folder
    rows, scored = str(tmp_path / "rows.csv"), tmp_path / "scored.parquet"
    launch.predict(run, [rows], scored)
    found = pq.read_table(scored)["seen_prediction"].to_numpy()
    error = found - table.seen.to_numpy()
    metrics = launch.evaluate(run, [rows])
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-9)
    assert metrics["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-9)
    assert metrics["r2"] == pytest.approx(1 - np.square(error).mean() / table.seen.var(ddof=0), rel=1e-6)
    assert len(np.unique(found)) > 500  # float32 has a dozen
    assert metrics["rmse"] < 40


class TerminateAt(Observer):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_that_was_stopped_is_scored_as_of_then(elsewhere: bool, tmp_path: Path) -> None:
    """Wherever its snapshots are, and also if it had ended before and was to train more."""
    text, rows = RECIPE, frame(1000)  # of 8 steps in a pass
    text += f"checkpoint: {{url: {tmp_path / 'snapshots'}}}\n" if elsewhere else ""
    recipe, run = make_recipe(tmp_path, text, rows), str(tmp_path / "run")
    snapshots = Series(str(tmp_path / ("snapshots" if elsewhere else "run/checkpoints")))

    def assert_of_the_newest() -> None:
        folder = launch.RunFolder.open(run)
        assert not elsewhere or not folder.checkpoints.exists()
        trainer = Trainer.load(snapshots.place(snapshots.latest() or 0))
        rows = open_part(load(recipe), trainer.schema, "test")
        assert rows is not None
        assert launch.evaluate(folder) == trainer.evaluate(rows)
        trainer.close()

    launch.train(load(recipe), run, observers=[TerminateAt(5)])
    assert_of_the_newest()
    ended = launch.train(None, run, resume=True)
    assert launch.evaluate(launch.RunFolder.open(run)) == ended.test
    more = load(recipe, ["training.epochs=3"])
    launch.train(more, run, resume=True, observers=[TerminateAt(20)])
    assert_of_the_newest()


def test_a_snapshot_or_a_version_of_a_step_can_be_scored(tmp_path: Path) -> None:
    recipe, run = make_recipe(tmp_path, RECIPE, frame(1000)), str(tmp_path / "run")
    keys = ["checkpoint.every_steps=3", "checkpoint.keep=9", "publish.every=1ms", "publish.dtype=float32"]
    launch.train(load(recipe, keys), run)
    folder = launch.RunFolder.open(run)
    snapshots, feed = Series(str(folder.checkpoints)), Series(str(folder.feed))
    for series, step in ((snapshots, snapshots.steps()[0]), (feed, feed.steps()[0])):
        predictor = Predictor.load(series.place(step))
        rows = open_part(load(recipe), predictor.schema, "test")
        assert rows is not None
        assert launch.evaluate(folder, step=step) == predictor.evaluate(rows)
        predictor.close()
    with pytest.raises(ConfigError, match="no snapshot or version of step 9,999") as caught:
        launch.evaluate(folder, step=9_999)
    assert str(feed.steps()[-1]) in caught.value.fix


def test_without_any_rows_to_score_evaluate_asks_for_them(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["data.split={modulo: 10}", "training.steps=3"])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    assert (outcome.result.steps, outcome.result.stopped) == (3, "steps")
    assert "auc" not in outcome.metrics
    with pytest.raises(ConfigError, match="the run's recipe has no test or validation rows"):
        launch.evaluate(outcome.folder)
    frame(100, seed=3).to_csv(tmp_path / "more.csv", index=False)
    assert 0 <= launch.evaluate(outcome.folder, [str(tmp_path / "more.csv")])["auc"] <= 1


def test_rows_of_a_trained_model_are_kept_as_its_recipe_says_or_as_is_set(tmp_path: Path) -> None:
    rows = frame(3000)
    rows["user"] = [f"u{i}" for i in range(3000)]
    tier = f"embedding.tier={{path: {tmp_path}, size: 160000}}"
    bounds = ["training.epochs=1", "embedding.memory=330000", "embedding.eviction={policy: lru}", tier]
    outcome = launch.train(load(make_recipe(tmp_path, rows=rows), bounds), str(tmp_path / "run"))
    folder = outcome.folder
    predictor = load_predictor(folder, folder.recipe())
    found = predictor.statistics()
    assert found.rows > found.tier.rows > 1500
    predictor.close()
    free = ["embedding.memory=null", "embedding.eviction=null", "embedding.tier=null"]
    metrics = launch.evaluate(folder, overrides=free)
    assert launch.evaluate(folder) == metrics == outcome.test
    assert launch.evaluate(folder, overrides=["embedding.tier=null"]) == metrics  # all fit in memory
    behind = ["embedding.tier={path: memory, size: 1GiB}"]  # of a GPU; scored in RAM, without its limits
    assert launch.evaluate(folder, overrides=behind) == metrics
    small = ["embedding.tier=null", "embedding.memory=120000"]
    for output, overrides in (("a.csv", free), ("b.csv", ())):
        launch.predict(folder, [str(tmp_path / "rows.csv")], tmp_path / output, overrides)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    for too_small in (small, ["embedding.tier.size=40000", "embedding.memory=250000"]):
        with pytest.raises(ConfigError, match="rows of the trained model do not fit") as caught:
            launch.evaluate(folder, overrides=too_small)
        assert "no room for" in caught.value.why
        assert "--set embedding.memory=SIZE" in caught.value.fix
    with pytest.raises(ConfigError, match=r"tables\.user\.dtype cannot be changed for a trained model"):
        launch.evaluate(folder, overrides=["tables.user.dtype=float16"])
    with pytest.raises(ConfigError, match=r"model\.name cannot be changed for a trained model"):
        launch.evaluate(folder, overrides=["model.name=dnn"])


def test_a_table_keeps_its_own_memory_when_its_model_is_used(tmp_path: Path) -> None:
    """Without it, its rows would have to fit into half of what all tables have."""
    rows = frame(3000)
    rows["user"] = [f"u{i}" for i in range(3000)]
    own = ["embedding.memory=400000", "tables.user={memory: 290000, eviction: {policy: lru}}"]
    recipe = load(make_recipe(tmp_path, rows=rows), [*own, "training.epochs=1"])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    with closing(load_predictor(outcome.folder, outcome.folder.recipe())) as predictor:
        assert predictor.statistics().tables["user"].rows == 2400
    assert launch.evaluate(outcome.folder) == outcome.test
    less = ["tables.user.memory=100000"]
    with pytest.raises(ConfigError, match="rows of the trained model do not fit"):
        launch.evaluate(outcome.folder, overrides=less)


def test_labels_of_every_kind_train_resume_evaluate_and_predict(tmp_path: Path) -> None:
    """Their metrics are those of scikit-learn on the written predictions."""
    rows = frame(2000)
    rng = np.random.default_rng(3)
    rows["cost"] = (1000 + 30 * rows["item"] + rng.normal(0, 60, len(rows))).round(2)
    rows["visits"] = rng.poisson(np.exp(rows["item"] / 10))
    rows["color"] = np.array(["red", "green", "blue"])[rows["item"] % 3]
    others = """
  - clicked
  - {name: cost, kind: regression, loss: huber}
  - {name: visits, kind: regression, loss: poisson}
  - {name: color, kind: multiclass, classes: [red, green, blue]}"""
    path = make_recipe(tmp_path, RECIPE.replace(" [clicked]", others), rows)
    settings = ["training.epochs=3", "training.patience=", "training.plateau="]
    settings += ["dense.optimizer.lr=0.03", "embedding.optimizer.lr=0.3"]
    whole = launch.train(load(path, settings), str(tmp_path / "whole"))
    run = str(tmp_path / "run")
    launch.train(load(path, settings), run, observers=[TerminateAt(20)])
    outcome = launch.train(None, run, resume=True)
    metrics = launch.evaluate(outcome.folder, [str(path.parent / "rows.csv")])
    assert outcome.test.keys() == whole.test.keys()
    assert outcome.test == whole.test == launch.evaluate(outcome.folder)
    launch.predict(outcome.folder, [str(path.parent / "rows.csv")], tmp_path / "out.parquet")
    scored = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert metrics["cost/rmse"] ** 2 == pytest.approx(
        mean_squared_error(rows["cost"], scored["cost_prediction"])
    )
    assert metrics["visits/mae"] == pytest.approx(
        mean_absolute_error(rows["visits"], scored["visits_prediction"])
    )
    classes = ["red", "green", "blue"]
    probabilities = scored[[f"color_probability_{name}" for name in classes]].to_numpy()
    truth = [classes.index(name) for name in rows["color"]]
    assert metrics["color/accuracy"] == pytest.approx(accuracy_score(truth, probabilities.argmax(1)))
    assert metrics["auc"] == pytest.approx(roc_auc_score(rows["clicked"], scored["clicked_probability"]))
    noise = {"cost": 60, "visits": np.sqrt(np.exp(rows["item"] / 10).mean())}
    for name, deviation in noise.items():  # of the labels around what can be known
        assert metrics[f"{name}/rmse"] < 1.15 * deviation
    assert metrics["color/accuracy"] > 0.95


@pytest.mark.parametrize(
    ("label", "metric"),
    [
        ("{name: price, kind: regression}", "loss"),
        ("{name: clicked, kind: multiclass, classes: 2}", "logloss"),
    ],
)
def test_early_stop_keeps_the_lowest_validation_loss(tmp_path: Path, label: str, metric: str) -> None:
    rows = frame(600, seed=7)  # few rows, and large steps: soon it is worse on the others
    text = RECIPE.replace("clicked", label).replace(
        "  price: {numeric: true, transform: [log1p, standardize]}\n", ""
    )
    settings = ["training.epochs=30", "dense.optimizer.lr=0.1", "training.patience=3"]
    outcome = launch.train(load(make_recipe(tmp_path, text, rows), settings), str(tmp_path / "run"))
    losses = [found[metric] for found in outcome.result.history]
    assert outcome.result.stopped == "patience"
    assert len(losses) == losses.index(min(losses)) + 4
    assert outcome.result.metrics[metric] == min(losses) < losses[-1]


def test_a_folder_that_a_trainer_saved_scores_as_that_of_a_run(tmp_path: Path) -> None:
    outcome = launch.train(load(make_recipe(tmp_path, rows=frame(600))), str(tmp_path / "run"))
    trainer = Trainer.load(str(tmp_path / "run"))
    trainer.save(str(tmp_path / "saved"))
    trainer.close()
    saved, rows = RunFolder.open(tmp_path / "saved"), [str(tmp_path / "rows.csv")]
    assert launch.evaluate(saved, rows) == pytest.approx(launch.evaluate(outcome.folder, rows), rel=1e-6)
    assert launch.evaluate(saved, rows, ["training.device=cpu"])["samples"] == 600
    assert launch.predict(saved, rows, tmp_path / "scores.csv") == 600
    with pytest.raises(ConfigError, match="the run's recipe has no test or validation rows") as caught:
        launch.evaluate(saved)
    assert caught.value.fix == "give the rows: --input FILE"
    again = Trainer.load(str(tmp_path / "saved"))
    again.close()


def test_columns_used_twice_are_scored_from_raw_and_prepared_files_alike(tmp_path: Path) -> None:
    """The runs of both kinds of files score both; ids such as 7 and 007 differ, and their numbers do not."""
    rows, random = frame(400), np.random.default_rng(3)
    rows["code"] = random.choice(["7", "007", "7.50", "NA", "1e2"], 400)
    rows["words"] = random.choice(["a b|c", "c|a b|a b", "b", ""], 400)
    twice = """
  number: {numeric: true, column: code, transform: standardize}
  code: {dim: 4}
  parts: {dim: 4, multi: true, column: words, separator: "|"}
  words: {dim: 4, multi: true, separator: " "}
  item_number: {numeric: true, column: item}
model:"""
    text = RECIPE.replace("batch_size", "shuffle: false\n  batch_size").replace("hybrid", "sync")
    text = text.replace("epochs: 2", "epochs: 1")
    raw = load(make_recipe(tmp_path, text.replace("\nmodel:", twice, 1), rows))
    prepared = prepare(raw, tmp_path / "out")
    inputs = {"raw": str(tmp_path / "rows.csv"), "prepared": str(tmp_path / "out" / "train" / "*.parquet")}
    found, kept, metrics = [], [], []
    for name, recipe in (("raw", raw), ("prepared", load(prepared.recipe))):
        outcome = launch.train(recipe, str(tmp_path / name))
        for kind, source in inputs.items():
            target = tmp_path / f"{name}-{kind}.parquet"
            launch.predict(outcome.folder, [source], target)
            scored = pq.read_table(target)
            found.append(scored["clicked_probability"].to_numpy())
            kept.append([value or "NA" for value in scored["code"].to_pylist()])
            metrics.append(launch.evaluate(outcome.folder, [source]))
    assert all((one == found[0]).all() for one in found)
    assert all(one == metrics[0] for one in metrics)
    assert all(one == rows["code"].tolist() for one in kept)
