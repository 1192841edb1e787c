from pathlib import Path

import pytest

from tests.config.recipes import TEXT, loaded, refused

FROZEN = TEXT + "tables:\n  user: {frozen: true, rows: users.npz}\n"


@pytest.mark.parametrize(("key", "value"), [("optimizer", "{name: sgd, lr: 1}"), ("initial_scale", "0.1")])
def test_a_frozen_table_has_nothing_that_changes_rows(key: str, value: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"tables.user.{key}={value}", text=FROZEN)
    assert error.what == f"tables.user.{key} does not go with frozen: true"
    assert error.where == f"--set tables.user.{key}"


def test_a_frozen_table_needs_rows(tmp_path: Path) -> None:
    error = refused(tmp_path, "tables.user.rows=", text=FROZEN)
    assert error.what == "tables.user is frozen, and has no rows"
    assert "recipe.yaml:14" in error.where


def test_files_of_rows_are_relative_to_the_recipe(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=FROZEN)
    assert recipe.resolved()["tables"]["user"]["rows"] == str(tmp_path / "users.npz")
    assert recipe.locate("users.npz") == str(tmp_path / "users.npz")
