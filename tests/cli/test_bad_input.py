"""The user's mistakes: each one clear error of at most four lines, exit code 2, and no folder left behind."""

import gzip
import socket
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.command import Answer, process, satrap
from tests.launch.runs import RECIPE, frame, make_recipe

HIDDEN = "model: {name: dnn, hidden: [8]}"


def train(folder: Path, text: str = RECIPE, rows: pd.DataFrame | None = None, *more: str) -> Answer:
    recipe = make_recipe(folder, text, rows)
    answer = satrap("train", recipe, "--output", folder / "run", *more)
    assert not (folder / "run").exists()
    return answer


def changed(**columns: object) -> pd.DataFrame:
    return frame(200).astype({name: object for name in columns}).assign(**columns)


def one_wrong(column: str, value: object) -> pd.DataFrame:
    rows = frame(200).astype({column: object})
    rows.loc[57, column] = value
    return rows


def test_unknown_key(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("staleness: 2", "stalenes: 2"))
    process("train", recipe).assert_refused(
        "unknown key 'stalenes' in training",
        f"{recipe}:13, key training.stalenes",
        "did you mean 'staleness'?",
        "allowed here: mode, staleness",
    )


def test_unknown_override(tmp_path: Path) -> None:
    train(tmp_path, RECIPE, None, "--set", "training.epoch=3").assert_refused(
        "where: --set training.epoch", "did you mean 'epochs'?"
    )


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (
            "{name: dnnn, hidden: [8]}",
            ["model.name cannot be 'dnnn'", "did you mean 'dnn'?", "clicks.yaml:10, key model.name"],
        ),
        ("{name: dnn, hiden: [8]}", ["no argument 'hiden'", "clicks.yaml:10, key model.hiden", "hidden"]),
        ("{name: dnn, hidden: [0]}", ["hidden", "clicks.yaml:10, key model"]),
        ("{name: dnn, hidden: eight}", ["hidden must be a list", "clicks.yaml:10, key model.hidden"]),
    ],
)
def test_unknown_model_or_argument(tmp_path: Path, model: str, parts: list[str]) -> None:
    train(tmp_path, RECIPE.replace(HIDDEN, f"model: {model}")).assert_refused(*parts)


def test_missing_recipe(tmp_path: Path) -> None:
    process("train", tmp_path / "none.yaml").assert_refused("cannot read the recipe", "none.yaml")


def test_missing_file(tmp_path: Path) -> None:
    train(tmp_path, RECIPE.replace("rows.csv", "rowz.csv")).assert_refused("rowz.csv")


def test_missing_file_of_the_test_rows(tmp_path: Path) -> None:
    text = RECIPE.replace(", test: [9]}", "}\n  test: nowhere.csv")
    train(tmp_path, text).assert_refused("nowhere.csv")


def test_missing_column(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("  item: ", "  itme: "))
    process("train", recipe, folder=tmp_path).assert_refused("'itme'", "did you mean 'item'?", "rows.csv")
    assert not (tmp_path / "runs").exists()


def test_wrong_type_in_a_column(tmp_path: Path) -> None:
    train(tmp_path, rows=one_wrong("price", "cheap")).assert_refused("cheap", "rows.csv", "row 58", "price")


def test_empty_file(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (tmp_path / "rows.csv").write_bytes(b"")
    satrap("train", recipe, "--output", tmp_path / "run").assert_refused("rows.csv")
    assert not (tmp_path / "run").exists()


def test_header_only(tmp_path: Path) -> None:
    train(tmp_path, RECIPE.replace(", standardize", ""), frame(0)).assert_refused("no rows", "rows.csv")
    train(tmp_path, RECIPE, frame(0)).assert_refused("price")


def test_unreadable_gzip(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("rows.csv", "rows.csv.gz"))
    whole = gzip.compress((tmp_path / "rows.csv").read_bytes())
    for damaged, run in ((b"this is not gzip at all" * 50, satrap), (whole[: len(whole) // 2], process)):
        (tmp_path / "rows.csv.gz").write_bytes(damaged)
        run("train", recipe, "--output", tmp_path / "run").assert_refused("rows.csv.gz")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [2, -1, 0.5, "yes"])
def test_labels_outside_0_and_1(tmp_path: Path, value: object) -> None:
    train(tmp_path, rows=one_wrong("clicked", value)).assert_refused(
        "rows.csv", "row 58", "clicked", str(value)
    )


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("user:  {dim: 4}", "user:  {dim: 0}", "clicks.yaml:7, key features.user.dim"),
        ("user:  {dim: 4}", "user:  {dim: 1000000}", "clicks.yaml:7, key features.user.dim"),
        ("batch_size: 100", "batch_size: 0", "clicks.yaml:4, key data.batch_size"),
        ("staleness: 2", "staleness: -1", "clicks.yaml:13, key training.staleness"),
        ("epochs: 2", "epochs: 0", "clicks.yaml:13, key training.epochs"),
        ("modulo: 10", "modulo: 2", "clicks.yaml:3, key data.split"),
        ("hidden: [8]", "hidden: [-8]", "clicks.yaml:10, key model"),
    ],
)
def test_impossible_sizes(tmp_path: Path, old: str, new: str, part: str) -> None:
    train(tmp_path, RECIPE.replace(old, new)).assert_refused(part)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    for device in ("gpu", "cuda:99"):
        train(tmp_path, RECIPE, None, "--set", f"training.device={device}").assert_refused(
            "where: --set training.device"
        )


@pytest.mark.parametrize(
    ("override", "where"),
    [("traning.mode=sync", "--set traning.mode"), ("data.splt.modulo=3", "--set data.splt.modulo")],
)
def test_a_misspelt_override_is_not_blamed_on_the_file(tmp_path: Path, override: str, where: str) -> None:
    answer = train(tmp_path, RECIPE, None, "--set", override)
    answer.assert_refused("unknown key", f"where: {where}\n", "did you mean")
    assert "clicks.yaml" not in answer.err


def test_occupied_output_folder(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.json").write_text("{}")
    answer = process("train", recipe, "--output", tmp_path / "run")
    answer.assert_refused("already holds a run", f"{tmp_path}/run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.json"]
    satrap("train", recipe, "--output", recipe).assert_refused("is a file, not a folder")


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    for command in (["evaluate"], ["predict", "--input", "x.csv", "--output", "y.csv"]):
        satrap(command[0], tmp_path, *command[1:]).assert_refused("not a run folder", str(tmp_path))
        satrap(command[0], tmp_path / "none", *command[1:]).assert_refused("run folder: it does not exist")


def test_two_columns_of_one_name_are_refused_by_every_command_that_uses_them(tmp_path: Path) -> None:
    rows = pa.Table.from_pandas(frame(300), preserve_index=False)
    recipe = make_recipe(tmp_path, RECIPE.replace("rows.csv", "twice.parquet"))
    pq.write_table(
        rows.append_column("other", rows["price"]).append_column("other", rows["item"]),
        tmp_path / "twice.parquet",
    )
    assert "have the name" not in satrap("doctor", recipe).out
    assert satrap("train", recipe, "--output", tmp_path / "run", "--set", "training.epochs=1").code == 0
    inputs = ["--input", tmp_path / "twice.parquet"]
    assert satrap("evaluate", tmp_path / "run", *inputs).code == 0
    given = ["predict", tmp_path / "run", *inputs, "--output", tmp_path / "out.csv"]
    satrap(*given).assert_refused("2 columns have the name 'other'")
    assert satrap(*given, "--keep", "user").code == 0
    pq.write_table(rows.append_column("user", rows["item"]), tmp_path / "twice.parquet")
    for command in (
        ["doctor", recipe],
        ["train", recipe, "--output", tmp_path / "other"],
        ["prepare", recipe, "--output", tmp_path / "prepared"],
        ["evaluate", tmp_path / "run", *inputs],
        ["predict", tmp_path / "run", *inputs, "--output", tmp_path / "x.csv", "--keep", "item"],
    ):
        answer = satrap(*command)
        assert answer.code in (1, 2), command
        assert "2 columns have the name 'user'" in answer.out + answer.err


def test_a_run_that_learns_nothing_fails(tmp_path: Path) -> None:
    text = RECIPE.replace("transform: [log1p, standardize]", "missing: 0")
    recipe = make_recipe(tmp_path, text, frame(2000).assign(price=3e38))
    answer = satrap("train", recipe, "--output", tmp_path / "run")
    answer.assert_refused("nothing was learnt: all 32 steps were refused", "numeric features", code=1)
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_refused_steps_are_said(tmp_path: Path) -> None:
    text = RECIPE.replace("transform: [log1p, standardize]", "missing: 0").replace("epochs: 2", "epochs: 1")
    rows = frame(2000)
    rows.loc[1200:, "price"] = 3e38
    recipe = make_recipe(tmp_path, text.replace("batch_size: 100", "batch_size: 100\n  shuffle: false"), rows)
    answer = satrap("train", recipe, "--output", tmp_path / "run", "--set", "training.seed=2")
    assert answer.code == 0, answer.err
    assert "warning: 7 of 16 steps (43.8%) were refused" in answer.err


def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("batch_size: 100", "batch_size: 100\n  encoding: utf-16"))
    satrap("train", recipe).assert_refused("not valid utf-16", "rows.csv, byte 1", "data.encoding")
    for wrong in ("rot13", "base64", "undefined", "utf-99"):
        satrap("train", recipe, "--set", f"data.encoding={wrong}").assert_refused("not a known text encoding")


def test_bytes_that_are_no_text_in_a_column_that_is_only_copied(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE, frame(300))
    assert satrap("train", recipe, "--output", tmp_path / "run").code == 0
    lines = (tmp_path / "rows.csv").read_bytes().splitlines()
    lines = [lines[0] + b",note", *(line + b",fine" for line in lines[1:])]
    lines[123] = lines[123].replace(b"fine", b"caf\xe9")
    (tmp_path / "new.csv").write_bytes(b"\n".join(lines))
    answer = satrap(
        "predict", tmp_path / "run", "--input", tmp_path / "new.csv", "--output", tmp_path / "out.csv"
    )
    answer.assert_refused("not UTF-8", "new.csv, row 123, column 'note'", "data.encoding")


@pytest.mark.cluster
@pytest.mark.parametrize("exchange", [pytest.param("local", marks=pytest.mark.slow), "servers"])
def test_a_run_that_cannot_start_leaves_its_folder_free(tmp_path: Path, exchange: str) -> None:
    recipe = make_recipe(tmp_path, RECIPE, frame(300))
    keys = f"cluster.exchange={exchange}", "checkpoint.durability=journal", "checkpoint.every_steps=100"
    more = keys if exchange == "servers" else keys[:1]
    options = [part for key in more for part in ("--set", key)]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = f"cluster.metrics_port={busy.getsockname()[1]}"
        answer = process("train", recipe, "--output", tmp_path / "run", *options, "--set", port)
    assert answer.code in (1, 2), answer.err
    assert "in use" in answer.err
    assert not (tmp_path / "run").exists()
    again = process("train", recipe, "--output", tmp_path / "run", *options)
    assert again.code == 0, again.err
