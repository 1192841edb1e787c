import json
from pathlib import Path

from tests.cli.command import process, satrap
from tests.launch.runs import RECIPE, make_recipe


def test_config_prints_values_with_their_origin(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    answer = process("config", "clicks.yaml", "--set", "training.mode=sync", folder=tmp_path)
    assert answer.code == 0
    lines = dict(line.split("# ") for line in answer.out.splitlines() if "#" in line)
    origins = {key.strip(): origin for key, origin in lines.items()}
    assert origins["mode: sync"] == "--set"
    assert origins["batch_size: 100"] == "clicks.yaml:4"
    assert origins["seed: 1"] == "default"
    found = json.loads(satrap("config", recipe, "--json").out)
    assert found["recipe"]["data"]["train"] == [str(tmp_path / "rows.csv")]
    assert found["origin"]["model.hidden"] == f"{recipe}:10"


def test_config_keys() -> None:
    assert "batch_size: whole number, default 4096" in satrap("config", "--keys").out
    assert satrap("config", "--section", "cluster").out.startswith("cluster\n")
    satrap("config", "--section", "clutser").assert_refused("unknown section 'clutser'")
    satrap("config").assert_refused("a recipe is required")


def test_config_refuses_what_train_refuses(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("staleness: 2", "stalenes: 2"))
    satrap("config", recipe).assert_refused(
        f"{recipe}:13, key training.stalenes", "did you mean 'staleness'?"
    )
