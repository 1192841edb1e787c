"""Recipes that train on a log of events: what they need, and what cannot be combined with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.recipes import TEXT, loaded, refused

STREAM = TEXT.replace(
    "  train: rows.csv\n  split: {modulo: 10, validation: [8], test: [9]}\n", "  stream: {folder: log}\n"
)


def test_a_log_is_read_in_its_order(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=STREAM)
    assert recipe.sections.data.shuffle is False
    assert recipe.sections.data.stream is not None
    plain = recipe.resolved()
    assert plain["data"]["stream"]["folder"] == str(tmp_path / "log")
    assert recipe.changed({}).resolved() == plain


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["data.train=rows.csv"], "data.train"),
        (["training.epochs=2"], "training.epochs"),
        (["data.shuffle=true"], "data.shuffle"),
        (["data.buffer_rows=10"], "data.buffer_rows"),
        (["data.split={modulo: 10, test: [9]}"], "data.split"),
        (["data.join=[{source: a.csv, on: user}]"], "data.join"),
        (["tune.usual=false"], "tune"),
        (["cluster.exchange=servers", "cluster.loaders=1"], "cluster.loaders"),
        (["cluster.exchange=servers", "dense.mesh.tensor=2"], "dense.mesh.tensor"),
    ],
)
def test_what_reads_rows_in_another_way_does_not_go_with_it(
    tmp_path: Path, settings: list[str], key: str
) -> None:
    error = refused(tmp_path, *settings, text=STREAM)
    assert error.what == f"{key} cannot be combined with data.stream"
    assert error.where is not None
    assert key in error.where


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (STREAM.replace("{folder: log}", "{time: t}"), "data.stream names no logs"),
        (
            STREAM.replace("{folder: log}", "{folder: a, redis: {url: b, streams: c}}"),
            "data.stream names 2 logs",
        ),
        (TEXT.replace("  train: rows.csv\n", "  batch_size: 5\n"), "the recipe has no training rows"),
        (TEXT + "  follow: true\n", "training.follow needs data.stream"),
    ],
)
def test_a_run_has_one_source_of_training_rows(tmp_path: Path, text: str, what: str) -> None:
    assert refused(tmp_path, text=text).what == what


LATER = "{folder: log, time: t, id: r, label_window: 10m, labels: {folder: labels}}"


def test_labels_may_come_later(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=STREAM.replace("{folder: log}", LATER))
    assert recipe.sections.data.stream is not None
    assert recipe.sections.data.stream.label_window == 600
    assert recipe.resolved()["data"]["stream"]["labels"]["folder"] == str(tmp_path / "labels")


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("time: t, ", "data.stream.labels needs data.stream.time"),
        ("id: r, ", "data.stream.labels needs data.stream.id"),
        ("label_window: 10m, ", "data.stream.labels needs data.stream.label_window"),
        (", labels: {folder: labels}", "data.stream.label_window needs data.stream.labels"),
    ],
)
def test_labels_that_come_later_need_all_keys(tmp_path: Path, missing: str, what: str) -> None:
    text = STREAM.replace("{folder: log}", LATER.replace(missing, ""))
    assert refused(tmp_path, text=text).what == what


def test_labels_come_from_one_log(tmp_path: Path) -> None:
    text = STREAM.replace("{folder: log}", LATER.replace("{folder: labels}", "{}"))
    assert refused(tmp_path, text=text).what == "data.stream.labels names no logs"
