from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from satrap.config import load
from satrap.errors import ConfigError, DataError
from satrap.launch import train
from satrap.runtime.cuda import CudaDevice
from satrap.tools.init import InitRequest, make_recipe
from tests.tools.init.frames import clicks, impressions, shop


def written(folder: Path, frame: pd.DataFrame, **asked: Any) -> str:
    path = folder / "data.csv"
    frame.to_csv(path, index=False)
    found = make_recipe(
        InitRequest(data=[str(path)], output=str(folder / "recipe.yaml"), **{"label": "y", **asked})
    )
    (folder / "recipe.yaml").write_text(found.text)
    return found.text


def test_a_complete_recipe(tmp_path: Path) -> None:
    text = written(tmp_path, clicks(6000))
    recipe = load(tmp_path / "recipe.yaml")
    kinds = {name: type(keys).__name__ for name, keys in recipe.sections.features.items()}
    assert kinds["user_id"] == kinds["genres"] == kinds["price_bins"] == "Categorical"
    assert kinds["price"] == "Numeric"
    assert recipe.sections.group == "user_id"
    left_out = text[text.index("# Unused columns:") :]
    assert "same: constant" in left_out
    assert "row: a row number" in left_out
    assert "copy: it alone predicts the label" in left_out
    assert "at: a time" in left_out


def test_few_rows_of_a_label_get_weights_and_a_start(tmp_path: Path) -> None:
    rows = clicks(8000)
    found = []
    for part in (rows, rows.head(500), pd.concat([rows] * 5)):
        written(tmp_path, part)
        recipe = load(tmp_path / "recipe.yaml")
        [label] = recipe.schema().labels
        names = recipe.sections.features
        found.append((recipe.sections.model.name, "price_bins" in names))
        assert ("price_plain" in names) == (len(part) < 10_000)
        if len(part) < 10_000:
            assert label.mean == pytest.approx(part["y"].mean(), rel=1e-3)
        else:
            assert label.mean is None
    assert found == [("dcnv2", True), ("lr", False), ("dcnv2", True)]


def test_few_rows_of_a_number_start_at_its_mean(tmp_path: Path) -> None:
    rows = shop(2400).drop(columns=["visits", "color"])
    for count, start in ((2400, True), (2600, None)):
        part = pd.concat([rows] * 2).head(count)
        part.to_parquet(tmp_path / "data.parquet")
        asked = InitRequest(
            data=[str(tmp_path / "data.parquet")], label="price", output=str(tmp_path / "recipe.yaml")
        )
        (tmp_path / "recipe.yaml").write_text(make_recipe(asked).text)
        [label] = load(tmp_path / "recipe.yaml").schema().labels
        assert (label.kind, label.start_at_mean) == ("regression", start)


def test_paths_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    clicks(200).to_csv("a/data.csv", index=False)
    found = make_recipe(
        InitRequest(data=["a/data.csv"], test=["a/data.csv"], label="y", output="b/c/recipe.yaml")
    )
    (tmp_path / "b" / "c").mkdir(parents=True)
    Path("b/c/recipe.yaml").write_text(found.text)
    recipe = load("b/c/recipe.yaml")
    for part in (recipe.sections.data.train, recipe.sections.data.test):
        assert part is not None
        assert Path(recipe.locate(part[0])).resolve() == tmp_path / "a" / "data.csv"
    assert recipe.sections.data.split is not None
    assert recipe.sections.data.split.test == []


def test_a_test_file_has_the_columns(tmp_path: Path) -> None:
    clicks(100).drop(columns="price").to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(DataError, match=r"'price' is missing[\s\S]*test.csv"):
        written(tmp_path, clicks(200), test=[str(tmp_path / "test.csv")])


def test_strange_names(tmp_path: Path) -> None:
    frame = clicks(300)[["y", "genres", "price"]]
    for name in ("a b", "a: b", "#x", "yes", "1", "ä/ö", 'say "hi"', "x.y"):
        frame[name] = np.resize(["p", "q", "r"], len(frame))
    written(tmp_path, frame)
    assert set(frame.columns) - {"y"} <= set(load(tmp_path / "recipe.yaml").sections.features)


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    """As a spreadsheet writes one."""
    frame = clicks(500)
    text = written(tmp_path, frame.rename(columns={"price": ""}))
    assert "(no name): the column has no name" in text
    features = load(tmp_path / "recipe.yaml").sections.features.values()
    assert not any(getattr(feature, "column", None) for feature in features)


def test_roles(tmp_path: Path) -> None:
    frame = clicks(500).assign(weight=1.5)
    assert "# weight: weight" in written(tmp_path, frame)
    text = written(tmp_path, frame, weight="weight", group="genres", time="price", drop=["copy"])
    recipe = load(tmp_path / "recipe.yaml")
    assert (recipe.sections.weight, recipe.sections.group) == ("weight", "genres")
    assert "weight" not in recipe.sections.features
    assert recipe.schema().labels[0].mean is None  # the share of 1s says nothing of weighted rows
    assert "price: a time" in text
    assert "copy: as requested" in text


def test_a_split_by_time(tmp_path: Path) -> None:
    text = written(tmp_path, clicks(1000))
    assert '# split: {column: at, validation: "2024-01-' in text
    text = written(tmp_path, clicks(1000), time="at")
    split = load(tmp_path / "recipe.yaml").sections.data.split
    assert split is not None
    assert (split.column, split.validation, split.test) == (
        "at",
        "2024-01-23 10:00:00",
        "2024-01-26 10:00:00",
    )
    test = tmp_path / "test.csv"
    clicks(50).to_csv(test, index=False)
    assert "{column: at, validation: " in written(tmp_path, clicks(1000), time="at", test=[str(test)])
    with pytest.raises(ConfigError, match="--time copy: the column has no times"):
        written(tmp_path, clicks(1000), time="copy")


def test_a_damaged_time_is_missing(tmp_path: Path) -> None:
    """Among numbers, as other texts there; the recipe reads the file, and the split is that of the others."""
    frame = clicks(1000)
    frame["at"] = (1_600_000_000 + 1000 * np.arange(1000)[::-1]).astype(str)
    written(tmp_path, frame, time="at")
    right = load(tmp_path / "recipe.yaml").sections.data.split
    frame.loc[700, "at"] = "84743496 https://example.org"
    text = written(tmp_path, frame, time="at")
    assert "# at_hour: " in text
    data = load(tmp_path / "recipe.yaml").sections.data
    assert data.split == right
    assert data.missing is not None
    assert data.missing[-1] == "84743496 https://example.org"
    text = written(tmp_path, frame)
    assert "# split: {column: at" in text
    assert "# at_hour: " in text
    assert load(tmp_path / "recipe.yaml").sections.data.missing == data.missing


def test_texts_that_are_no_times_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    frame = clicks(1000)
    frame.loc[[421, 500, 502], "at"] = ["2024-02-30 10:00:00", "soon", "soon"]
    with pytest.raises(DataError, match="--time at: 3 of 1,000 values are not times") as caught:
        written(tmp_path, frame, time="at")
    assert caught.value.where.endswith("data.csv, row 422, column 'at': '2024-02-30 10:00:00'")


def test_proposed_features_of_times_are_taken_as_they_stand(tmp_path: Path) -> None:
    text = written(tmp_path, clicks(300))
    proposed = [line for line in text.splitlines() if line.startswith("  # at_")]
    assert [line.split(":")[0] for line in proposed] == ["  # at_hour", "  # at_weekday", "  # at_age"]
    for line in proposed:
        text = text.replace(line, line.replace("# ", ""))
    (tmp_path / "recipe.yaml").write_text(text)
    features = load(tmp_path / "recipe.yaml").schema().to_dict()["features"]
    for part in "hour", "weekday", "age":
        assert features[f"at_{part}"]["time"] == part


def test_how_csv_files_are_written(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("y; color ; size\n" + "0; red; 1.5\n1; blue; 2.5\n1; red; 1.5\n" * 20)
    found = make_recipe(InitRequest(data=[str(path)], label="y", output=str(tmp_path / "recipe.yaml")))
    (tmp_path / "recipe.yaml").write_text(found.text)
    data = load(tmp_path / "recipe.yaml").sections.data
    assert (data.separator, data.strip) == (";", True)


def test_a_spreadsheet_of_another_country(tmp_path: Path) -> None:
    """The recipe of `1.234,5` is that of `1234.5` but for how the file is read."""
    frame = clicks(2000)
    written(tmp_path, frame)
    plain = load(tmp_path / "recipe.yaml")
    german = frame.assign(
        price=[f"{price:,.3f}".translate(str.maketrans(",.", ".,")) for price in frame["price"]]
    )
    german["größe"] = frame["same"]
    german.to_csv(tmp_path / "german.csv", index=False, sep=";", encoding="cp1252")
    asked = InitRequest(
        data=[str(tmp_path / "german.csv")],
        label="y",
        output=str(tmp_path / "recipe.yaml"),
        encoding="cp1252",
    )
    (tmp_path / "recipe.yaml").write_text(make_recipe(asked).text)
    found = load(tmp_path / "recipe.yaml")
    assert list(found.schema().features) == list(plain.schema().features)
    assert found.schema().features["price"] == plain.schema().features["price"]
    data = found.sections.data
    assert (data.decimal, data.encoding, data.separator) == (",", "cp1252", ";")


def test_texts_that_mean_missing_are_declared(tmp_path: Path) -> None:
    frame = clicks(500)
    frame["size"] = np.resize(["1.5", "2.25", "7.125", "unknown", *map(str, range(40))], len(frame))
    written(tmp_path, frame)
    assert "unknown" in (load(tmp_path / "recipe.yaml").sections.data.missing or [])


@pytest.mark.slow
def test_two_thousand_columns(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    values = {f"x{i}": random.normal(size=200) for i in range(2000)}
    written(tmp_path, pd.DataFrame({"y": random.integers(0, 2, 200), **values}))
    recipe = load(tmp_path / "recipe.yaml")
    assert sum(name.startswith("x") and "_" not in name for name in recipe.sections.features) == 2000


def test_few_numbers_alone_have_no_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": [0, 1] * 100, "x": np.random.default_rng(1).normal(size=200)})
    text = written(tmp_path, frame)
    assert "embedding:" not in text
    recipe = load(tmp_path / "recipe.yaml", ["training.epochs=1"])
    assert not recipe.schema().categorical
    assert train(recipe, str(tmp_path / "run")).result.steps > 0


def test_lists_in_parquet(tmp_path: Path) -> None:
    tags = [["a", "b"], ["c"], []] * 100
    pq.write_table(pa.table({"y": [0, 1, 1, 0] * 75, "tags": tags}), tmp_path / "data.parquet")
    found = make_recipe(
        InitRequest(data=[str(tmp_path / "*.parquet")], label="y", output=str(tmp_path / "recipe.yaml"))
    )
    assert "tags: {dim: 4, multi: true, pooling: mean}" in found.text


NO_INPUT: dict[str, tuple[Any, str]] = {
    "bytes": (pa.array([b"\xff", b"a"] * 60), "bytes that are not UTF-8 text"),
    "views": (pa.array([b"\xff", b"a"] * 60, pa.binary_view()), "bytes that are not UTF-8 text"),
    "lists_of_bytes": (pa.array([[b"\xff"], []] * 60), "bytes that are not UTF-8 text"),
    "codes": (pa.array([b"\xff", b"a"] * 60).dictionary_encode(), "bytes that are not UTF-8 text"),
    "waits": (pa.array([1, 2] * 60, pa.duration("s")), "a column of type duration"),
    "lists_of_waits": (pa.array([[1], []] * 60, pa.list_(pa.duration("s"))), "a column of type duration"),
    "maps": (pa.array([[("a", 1)]] * 120, pa.map_(pa.string(), pa.int64())), "its values are structs"),
}


def of_parts(folder: Path, parts: list[dict[str, Any]], label: str = "y", **asked: Any) -> str:
    """Write the columns beside others that can be used, a file for each part, and return their recipe."""
    for i, columns in enumerate(parts):
        some = {
            "y": np.random.default_rng(i).integers(0, 2, 120),
            "color": ["red", "blue", "red", "green"] * 30,
        }
        pq.write_table(pa.table({**some, **columns}), folder / f"{i}.parquet", store_schema=True)
    files = [str(folder / f"{i}.parquet") for i in range(len(parts))]
    found = make_recipe(InitRequest(data=files, label=label, output=str(folder / "recipe.yaml"), **asked))
    (folder / "recipe.yaml").write_text(found.text)
    return found.text


def test_columns_that_are_no_input_are_left_out_with_a_reason(tmp_path: Path) -> None:
    columns = {name: array for name, (array, _) in NO_INPUT.items()}
    text = of_parts(tmp_path, [columns])
    for name, (_, why) in NO_INPUT.items():
        assert f"#   {name}: {why}" in text
    assert list(load(tmp_path / "recipe.yaml").sections.features) == ["color"]
    text = of_parts(tmp_path, [columns], drop=list(columns))
    assert text.count(": as requested") == len(columns)
    with pytest.raises(DataError, match="the label 'waits' cannot be learned: a column of type duration"):
        of_parts(tmp_path, [columns], label="waits")
    with pytest.raises(DataError, match="the label 'maps' cannot be learned: its values are structs"):
        of_parts(tmp_path, [columns], label="maps")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([5, 7, 9] * 40, ["5", "8", "seven"] * 40, "x: {dim: 4} # numbers and text mixed"),
        ([5, 7, 9, 11] * 30, ["5", "8", "2", "1"] * 30, "x: {numeric: true, "),
        ([None] * 120, ["p", "q"] * 60, "x: {dim: 4} # a category"),
        ([True, False, False] * 40, ["true", "false"] * 60, "x: {dim: 4} # binary"),
        (
            [["a"], ["b"]] * 60,
            ["a", "b"] * 60,
            "#   x: list<element: string> in some files, string in others",
        ),
        (
            ["a", "b"] * 60,
            [["a"], ["b"]] * 60,
            "#   x: string in some files, list<element: string> in others",
        ),
        ([{"a": 1}] * 120, ["a", "b"] * 60, "#   x: its values are structs"),
        ([[1, 2]] * 120, [[{"a": 1}]] * 120, "#   x: its values are structs"),
        (
            pa.array([b"ab", b"\xff\xff"] * 60, pa.binary(2)),
            ["a", "b"] * 60,
            "#   x: bytes that are not UTF-8",
        ),
    ],
)
def test_parts_of_unlike_types(tmp_path: Path, first: Any, second: Any, expected: str) -> None:
    """What can be read part by part is used, and what cannot is left out."""
    text = of_parts(tmp_path, [{"x": first}, {"x": second}])
    assert expected in re.sub(" +#", " #", text)
    assert "x: as requested" in of_parts(tmp_path, [{"x": first}, {"x": second}], drop=["x"])


@pytest.mark.parametrize("ext", ["parquet", "arrow", "csv"])
def test_two_columns_of_one_name_are_refused_if_they_are_used(tmp_path: Path, ext: str) -> None:
    random = np.random.default_rng(3)
    columns = [random.integers(0, 2, 200), random.integers(0, 5, 200), random.integers(0, 7, 200)]

    def asked(names: list[str], **more: Any) -> InitRequest:
        path = str(tmp_path / f"data.{ext}")
        table = pa.Table.from_arrays([*map(pa.array, columns), pa.array(["u", "v"] * 100)], names)
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        if ext == "parquet":
            pq.write_table(table, path)
        if ext == "csv":
            pyarrow.csv.write_csv(table, path)
        return InitRequest(data=[path], output=str(tmp_path / "recipe.yaml"), **{"label": "y", **more})

    with pytest.raises(DataError, match="2 columns have the name 'x'") as caught:
        make_recipe(asked(["y", "x", "x", "z"]))
    assert caught.value.fix == "give each column a unique name, or --drop x"
    found = make_recipe(asked(["y", "x", "x", "z"], drop=["x"]))
    assert "4 columns of" in found.text
    assert (found.used, "x: as requested" in found.text) == (1, True)
    assert make_recipe(asked(["y", "", "", "z"])).used == 1  # of a spreadsheet: no feature has no name
    with pytest.raises(DataError, match="2 columns have the name 'y'") as caught:
        make_recipe(asked(["y", "y", "x", "z"], drop=["x"]))
    assert caught.value.fix == "give each column a unique name"


def test_a_dropped_column_is_not_read(tmp_path: Path) -> None:
    rows = [f"{i % 2},c{i * i % 7},\xe4\n" for i in range(60)]
    (tmp_path / "data.csv").write_bytes(b"y,color,latin\n" + "".join(rows).encode("latin-1"))
    asked = InitRequest(data=[str(tmp_path / "data.csv")], label="y", output=str(tmp_path / "recipe.yaml"))
    with pytest.raises(DataError, match="not UTF-8"):
        make_recipe(asked)
    assert make_recipe(replace(asked, drop=["latin"])).used == 1
    assert make_recipe(replace(asked, drop=["latin", "y"])).used == 1
    frame = clicks(1000)  # a time may say which rows are for the test, and be no feature
    assert "at: as requested" in written(tmp_path, frame, time="at", drop=["at", "row"])


def test_files_without_names(tmp_path: Path) -> None:
    """The recipe reads the same rows as one of a file with names, and `load` finds its columns."""
    frame = clicks(600)
    written(tmp_path, frame)
    named = load(tmp_path / "recipe.yaml")
    frame.to_csv(tmp_path / "rows.csv", index=False, header=False)
    asked = InitRequest(
        data=[str(tmp_path / "rows.csv")],
        label="y",
        output=str(tmp_path / "r.yaml"),
        names=list(frame.columns),
    )
    (tmp_path / "r.yaml").write_text(make_recipe(asked).text)
    found = load(tmp_path / "r.yaml")
    assert found.schema().to_dict() == named.schema().to_dict()
    assert found.sections.data.columns == list(frame.columns)
    with pytest.raises(DataError, match="a row has 8 values, the header has 7"):
        make_recipe(replace(asked, names=asked.names[1:]))
    with pytest.raises(DataError, match="2 columns have the name 'y'"):
        make_recipe(replace(asked, names=["y", *asked.names[1:]]))
    with pytest.raises(ConfigError, match="--names is for CSV and TSV files, not for parquet"):
        make_recipe(replace(asked, format="parquet"))


@pytest.mark.parametrize("count", [100, 4000])
def test_vectors_need_no_table_beside_them(tmp_path: Path, count: int) -> None:
    random = np.random.default_rng(0)
    table = {"y": random.integers(0, 2, count), "v": random.normal(size=(count, 2)).tolist()}
    pq.write_table(pa.table(table), tmp_path / "v.parquet")
    found = make_recipe(
        InitRequest(data=[str(tmp_path / "v.parquet")], label="y", output=str(tmp_path / "r.yaml"))
    )
    (tmp_path / "r.yaml").write_text(found.text)
    recipe = load(tmp_path / "r.yaml", ["training.epochs=1"])
    assert list(recipe.sections.features) == ["v"]
    assert train(recipe, str(tmp_path / "run")).result.steps > 0


def test_a_copy_of_a_number_or_class_is_left_out_and_what_goes_with_it_is_not(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    size = random.normal(size=2000)
    price = 100 + 10 * size + random.normal(size=2000)
    text = written(tmp_path, pd.DataFrame({"y": price, "cents": 100 * price, "size": size}))
    assert "cents: it alone predicts the label" in text
    assert "size" in load(tmp_path / "recipe.yaml").sections.features
    kind = random.choice(["iris", "rose", "lily"], 2000)
    frame = pd.DataFrame(
        {"y": kind, "latin": np.char.upper(kind), "length": random.normal(3.0 * (kind == "iris"))}
    )
    text = written(tmp_path, frame.assign(is_iris=np.where(kind == "iris", "x", "o")))
    assert "latin: it alone predicts the label" in text
    assert {"length", "is_iris"} <= set(load(tmp_path / "recipe.yaml").sections.features)


def test_what_is_known_only_after_the_label_is_left_out_unless_it_is_kept(tmp_path: Path) -> None:
    text = written(tmp_path, impressions(8000), label="clicked")
    features = set(load(tmp_path / "recipe.yaml").sections.features)
    assert features & {"purchased", "revenue", "coupon", "status"} == set()
    assert {"user_id", "position", "price", "device_type"} <= features
    assert "#   purchased: the label is 1 in all 603 rows without value '0'" in text
    written(tmp_path, impressions(8000), label="clicked", keep=["status", "price"])
    features = set(load(tmp_path / "recipe.yaml").sections.features)
    assert features & {"purchased", "revenue", "coupon", "status"} == {"status"}
    text = written(tmp_path, clicks(1000), keep=["copy"])  # also one that tells all
    assert "copy: {dim: 4}" in text


def test_users_with_one_label_are_no_copy(tmp_path: Path) -> None:
    frame = clicks(4000)
    frame["y"] = np.where(frame["user_id"] < 3, 1, frame["y"])
    frame["y"] = np.where(frame["user_id"] > 33, 0, frame["y"])
    written(tmp_path, frame)
    assert "user_id" in load(tmp_path / "recipe.yaml").sections.features


@pytest.mark.parametrize(
    ("frame", "asked", "kind", "match"),
    [
        (clicks(100), {"label": "yy"}, ConfigError, "did you mean 'y'"),
        (clicks(100), {"drop": ["nix"]}, ConfigError, "column 'nix' does not exist"),
        (clicks(100), {"keep": ["prise"]}, ConfigError, "did you mean 'price'"),
        (clicks(100)[["y", "same"]], {}, DataError, "no usable column remains"),
        (clicks(500)[["y", "copy"]], {}, DataError, "--keep COLUMN"),
        (pd.DataFrame({"y": []}), {}, DataError, "no rows"),
        (pd.DataFrame({"y": ["p", "q", "r"], "x": 1}), {}, DataError, "3 values"),
    ],
)
def test_clear_errors(
    tmp_path: Path, frame: pd.DataFrame, asked: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match) as caught:
        written(tmp_path, frame, **asked)
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("rows", "users", "named"), [(90, 9, False), (90, 10, True), (50, 10, True), (50, 11, False)]
)
def test_a_group_of_users_is_ten_or_more_of_five_rows_each(
    tmp_path: Path, rows: int, users: int, named: bool
) -> None:
    frame = pd.DataFrame({"y": np.random.default_rng(2).integers(0, 2, rows), "x": np.arange(rows) % 3})
    text = written(tmp_path, frame.assign(user=[f"u{i % users}" for i in range(rows)]))
    assert ("group: user" in text) == named


def test_rows_of_training(tmp_path: Path) -> None:
    """Eight tenths, or nine if there are files for the test."""
    frame = pd.DataFrame({"y": [0, 1] * 50, "x": [f"c{i % 7}" for i in range(100)]})
    assert "only about 40 training rows have the rarer label" in written(tmp_path, frame)
    frame.to_csv(tmp_path / "test.csv", index=False)
    text = written(tmp_path, frame, test=[str(tmp_path / "test.csv")])
    assert "only about 45 training rows have the rarer label" in text


def test_a_gpu_is_proposed_in_a_comment(tmp_path: Path) -> None:
    assert "GPU" not in written(tmp_path, clicks(2000))
    gpu = CudaDevice("Some GPU", 16 << 30, 8 << 30, True)
    text = written(tmp_path, clicks(2000), cuda=gpu)
    [line] = [line for line in text.splitlines() if "GPU" in line]
    assert line.startswith("# To train on the GPU (Some GPU, 8.0 GiB free), set training.device: cuda, ")
    assert "embedding.device: cuda (the tables have about " in line
    assert line.endswith("dense.precision: bfloat16.")
    assert load(tmp_path / "recipe.yaml").sections.training.device == "cpu"
    full = written(tmp_path, clicks(2000), cuda=replace(gpu, free=1000, bfloat16=False))
    assert full.splitlines()[-1].endswith("set training.device: cuda.")
