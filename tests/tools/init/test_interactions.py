from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from satrap.config import load
from satrap.errors import ConfigError, DataError
from satrap.launch import train
from satrap.tools.init import InitRequest, make_recipe, profile
from satrap.tools.init.interactions import implicit_label
from tests.tools.init.frames import choices


def recipe_of(folder: Path, frame: pd.DataFrame, **asked: Any) -> str:
    """Write the data and its recipe, and return its text."""
    frame.to_parquet(folder / "data.parquet")
    request = {"user": "user_id", "item": "product_id", **asked}
    found = make_recipe(
        InitRequest(data=[str(folder / "data.parquet")], output=str(folder / "recipe.yaml"), **request)
    )
    (folder / "recipe.yaml").write_text(found.text)
    return found.text


def test_columns_belong_to_the_item_the_user_or_nothing(tmp_path: Path) -> None:
    text = recipe_of(tmp_path, choices(3000))
    recipe = load(tmp_path / "recipe.yaml")
    features = recipe.sections.features
    assert list(features) == ["user_id", "product_id", "country", "kind", "price", "device", "seen"]
    assert recipe.sections.model.name == "two_tower"
    assert (recipe.sections.model.model_extra or {})["item"] == ["product_id", "kind", "price"]
    left_out = text[text.index("# Unused columns:") : text.index("# From times")]
    for column, why in {
        "session": "each value occurs with one user_id",
        "title": "another name of product_id",
        "variant": "each value occurs with one product_id, so it leaks it",
        "gift": "differs within rows of a product_id. If it marks the choices, use --label gift",
        "seconds": "a number that differs within rows of a product_id",
        "rating": "known only after the choice; all rows count. --label rating",
        "at": "a time",
    }.items():
        assert f"#   {column}: {why}" in left_out


def test_the_label_the_loss_and_the_metrics(tmp_path: Path) -> None:
    recipe_of(tmp_path, choices(3000))
    recipe = load(tmp_path / "recipe.yaml")
    [label] = recipe.schema().labels
    assert (label.name, label.implicit) == ("bought", True)
    assert recipe.sections.group == "user_id"
    training = recipe.sections.training
    assert training.loss is not None
    assert (training.loss.name, training.loss.negatives, training.loss.logq) == ("sampled_softmax", 128, True)
    assert training.ranking is not None
    assert (training.ranking.at, training.ranking.among) == ((10,), "items")
    split = recipe.sections.data.split
    assert split is not None
    assert split.column == "at"


@pytest.mark.parametrize(("twice", "exclude"), [(0.03, "user_id"), (0.2, None)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_items_of_training_rows_are_not_ranked_if_users_hardly_choose_an_item_twice(
    tmp_path: Path, twice: float, exclude: str | None, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    pairs = random.permutation(60 * 120)[: int(3000 * (1 - twice))]
    pairs = random.permutation(np.concatenate([pairs, pairs[: 3000 - len(pairs)]]))
    rows = pd.DataFrame({"user_id": pairs // 120, "product_id": pairs % 120})
    monkeypatch.setattr(profile, "SAMPLE_ROWS", int(3000 * share))
    text = recipe_of(tmp_path, rows)
    ranking = load(tmp_path / "recipe.yaml").sections.training.ranking
    assert ranking is not None
    assert ranking.exclude == exclude
    assert ("without items of its training rows" in text) == (exclude is not None)


def test_a_column_is_kept_as_requested(tmp_path: Path) -> None:
    recipe_of(tmp_path, choices(3000), keep=["gift"], drop=["seen", "rating"])
    features = load(tmp_path / "recipe.yaml").sections.features
    assert "gift" in features
    assert "seen" not in features


def test_without_times_every_tenth_row(tmp_path: Path) -> None:
    recipe_of(tmp_path, choices(3000).drop(columns="at"))
    split = load(tmp_path / "recipe.yaml").sections.data.split
    assert split is not None
    assert (split.modulo, split.validation, split.test) == (10, [8], [9])


def test_new_users_in_later_rows(tmp_path: Path) -> None:
    """A user's rows are together in time: a split by time would test users of whom nothing is known."""
    frame = choices(3000).sort_values("user_id", kind="stable").assign(at=1_600_000_000 + np.arange(3000))
    text = recipe_of(tmp_path, frame)
    assert "of the last rows have a user_id without earlier rows" in text
    assert "# split: {column: at" in text
    split = load(tmp_path / "recipe.yaml").sections.data.split
    assert split is not None
    assert split.modulo == 10
    text = recipe_of(tmp_path, frame, time="at")
    assert "of the last rows have a user_id without earlier rows" in text
    assert "modulo" not in text
    assert "without earlier rows" not in recipe_of(tmp_path, choices(3000))


@pytest.mark.parametrize("lists", [False, True])
def test_a_history_is_read_by_the_proposed_model(tmp_path: Path, lists: bool) -> None:
    """The proposed lines replace those that they name, with nothing else edited."""
    frame = choices(1000)[["user_id", "product_id", "seen", "at"]]
    if lists:
        frame["seen"] = [[int(i) for i in text.split("|") if i] for text in frame["seen"]]
    lines = recipe_of(tmp_path, frame).splitlines()
    proposed = {line.split(":")[0].strip("# "): line for line in lines if line.startswith("  #   ")}
    seen = next(i for i, line in enumerate(lines) if line.startswith("  seen: "))
    assert "pooling: mean" in lines[seen]
    assert "table: product_id" in lines[seen]
    first = lines.index("model:")
    changed = [
        *lines[:seen],
        proposed["seen"].replace("#   ", ""),
        *lines[seen + 1 : first],
        proposed["model"].replace("  #   ", ""),
        *lines[lines.index("embedding:") :],
    ]
    (tmp_path / "recipe.yaml").write_text("\n".join(changed))
    recipe = load(tmp_path / "recipe.yaml", ["training.epochs=1"])
    assert recipe.sections.model.name == "sasrec"
    feature = recipe.schema().categorical["seen"]
    assert (feature.max_values, feature.keep, feature.table) == (50, "last", "product_id")
    assert train(recipe, str(tmp_path / "run")).result.steps > 0


def test_a_history_with_the_answer_is_left_out(tmp_path: Path) -> None:
    frame = choices(3000)
    frame["seen"] = [
        f"{text}|{i}".strip("|") for text, i in zip(frame["seen"], frame["product_id"], strict=True)
    ]
    text = recipe_of(tmp_path, frame)
    assert "seen: a history with the product_id of its own row in 100% of the rows leaks it" in text
    assert "sasrec" not in text


def test_a_history_alone_describes_the_user(tmp_path: Path) -> None:
    frame = choices(1000)[["product_id", "seen"]]
    recipe_of(tmp_path, frame, user=None)
    recipe = load(tmp_path / "recipe.yaml")
    assert list(recipe.sections.features) == ["product_id", "seen"]
    assert recipe.sections.group is None
    with pytest.raises(DataError, match="no column describes the user"):
        recipe_of(tmp_path, frame[["product_id"]], user=None)


def test_columns_that_are_no_ids(tmp_path: Path) -> None:
    frame = choices(300).assign(one=1, none=None, tags=[["a", "b"]] * 300)
    for column, why in {"one": "only one item", "none": "no values", "tags": "lists"}.items():
        with pytest.raises(DataError, match=f"'{column}' cannot be the item: [\\s\\S]*{why}"):
            recipe_of(tmp_path, frame, item=column)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({}, "needs --label or --item"),
        ({"label": "y", "item": "i"}, "needs one of --label and --item"),
        ({"label": "y", "user": "u"}, "--user needs --item"),
        ({"item": "i", "positive": ("1",)}, "--positive needs --label"),
        ({"item": "i", "threshold": 0.0}, "--threshold needs --label"),
        ({"item": "i", "kind": "binary"}, "--kind needs --label"),
        ({"item": "i"}, "column 'i' does not exist"),
        ({"item": "x", "user": "u"}, "column 'u' does not exist"),
    ],
)
def test_what_is_asked_for(tmp_path: Path, asked: dict[str, Any], match: str) -> None:
    pq.write_table(pa.table({"y": [0, 1], "x": [1, 2]}), tmp_path / "data.parquet")
    with pytest.raises(ConfigError, match=match) as caught:
        make_recipe(InitRequest(data=[str(tmp_path / "data.parquet")], **asked))
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("item", "label"),
    [("movieId", "watched"), ("track_id", "listened"), ("ISBN", "read"), ("sku", "bought"), ("x", "chosen")],
)
def test_labels_by_the_name_of_the_item(item: str, label: str) -> None:
    assert implicit_label(item, [item]).column == label
    assert implicit_label(item, [item, label]).column == f"{label}_item"
