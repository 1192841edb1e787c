import json
from pathlib import Path

import pytest

from satrap.config import annotated, load, origins, reference
from satrap.errors import ConfigError
from tests.config.recipes import loaded, write


def test_annotated_is_yaml_with_the_origin_of_every_value(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "training.mode=sync")
    text = annotated(recipe)
    lines = {line.split("#")[0].strip(): line.split("# ")[-1] for line in text.splitlines() if "#" in line}
    assert lines["mode: sync"] == "--set"
    assert lines["staleness: 4"] == f"{tmp_path}/recipe.yaml:12"
    assert lines["epochs: 1"] == "default"
    assert lines["user: {dim: 16}"] == f"{tmp_path}/recipe.yaml:6"
    again = load(write(tmp_path, text))
    assert again.resolved() == recipe.resolved()


def test_an_override_inside_a_feature_shows(tmp_path: Path) -> None:
    assert origins(loaded(tmp_path, "features.user.dim=8"))["features.user"] == "--set"


def test_origins_cover_the_resolved_recipe(tmp_path: Path) -> None:
    recipe = loaded(tmp_path)
    assert set(origins(recipe).values()) == {
        "default",
        *(f"{tmp_path}/recipe.yaml:{line}" for line in (2, 3, 4, 6, 7, 8, 9, 11, 12)),
    }
    json.dumps(recipe.resolved())


def test_reference_explains_sections_and_keys() -> None:
    text = reference()
    assert "  batch_size: whole number, default 4096\n      Samples per step and worker;" in text
    assert "features.<name>  (Numeric)" in text
    training = reference("training")
    assert training.startswith("training\n")
    assert "batch_size" not in training
    with pytest.raises(ConfigError, match="unknown section 'trainin'"):
        reference("trainin")


def test_origins_stand_in_one_column(tmp_path: Path) -> None:
    """The 72nd, but for longer lines."""
    for line in annotated(loaded(tmp_path, f"data.train=[{'x' * 90}]")).splitlines():
        left, marked, _ = line.partition("  # ")
        if marked:
            assert len(left) == max(len(left.rstrip()), 72)
