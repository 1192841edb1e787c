"""Prepared files are read as the raw files are: the same batches, whatever the recipe and the rows."""

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from satrap.config import load
from satrap.data import measure
from satrap.data.formats.csv import BLOCK_BYTES
from satrap.errors import ConfigError, DataError
from satrap.launch.datasets import PARTS, measured, open_part
from satrap.tools.prepare import prepare
from satrap.tools.prepare.manifest import MANIFEST
from tests.data.helpers_data import same
from tests.tools.prepare.raw_rows import contents, make

RECIPE = """\
data:
  train: train.tsv
  columns: [y, kind, a, b, n, at, tags, w, pairs, v, g, s, seen, seen_at, seen_n, loved, love]
  missing: ["", "-", "NA"]
  quote: '"'
  shuffle: false
  batch_size: 7
  split: {modulo: 5, validation: [3], test: [4]}
labels:
  - y
  - {name: kind, positive: ["yes", "7"]}
features:
  a: {dim: 4}
  few: {dim: 4, column: a, buckets: 5}
  known: {dim: 4, column: a, vocabulary: [x, 7]}
  rank: {numeric: true, column: n, transform: {quantiles: 4}}
  both: {dim: 4, cross: [a, b]}
  n: {numeric: true, transform: [log1p, standardize]}
  level: {dim: 4, column: n, boundaries: [0, 1.5, 10]}
  n_id: {dim: 4, column: n}
  a_often: {numeric: true, column: a, count: log1p}
  b_liked: {numeric: true, column: b, mean_label: {label: kind, folds: 2}, transform: standardize}
  hour: {dim: 4, column: at, time: hour}
  age: {numeric: true, column: at, time: age}
  tags: {dim: 4, multi: true, separator: "|", max_values: 2, keep: last}
  first: {dim: 4, multi: true, separator: "|", column: tags, max_values: 1}
  heavy: {dim: 4, multi: true, separator: "|", column: tags, weights: w, pooling: mean}
  loved: {dim: 4, multi: true, separator: "|", weights: love, pooling: mean}
  pairs: {dim: 4, multi: true, separator: "|", weight_separator: ":", max_values: 3}
  v: {vector: 2, separator: " "}
  seen: {dim: 4, multi: true, pooling: none, separator: "|", sequence: past, max_values: 2, keep: last}
  seen_few: {dim: 4, multi: true, pooling: none, separator: "|", sequence: past, column: seen, buckets: 3}
  seen_hour: {dim: 4, multi: true, pooling: none, separator: "|", sequence: past, column: seen_at, time: hour}
  seen_n: {numeric: true, separator: "|", sequence: past, transform: standardize}
  seen_alone: {dim: 4, multi: true, separator: "|", column: seen}
  seen_again: {dim: 4, multi: true, pooling: none, separator: "|", sequence: again, column: seen}
  at_id: {dim: 4, column: at}
  y_id: {dim: 4, column: y}
  kind_id: {dim: 4, column: kind}
  s_id: {dim: 4, column: s}
  g_words: {dim: 4, multi: true, separator: " ", column: g}
weight: s
group: g
salt: 5
model: {name: dnn, hidden: [8]}
"""

NAMES = ["y", "kind", "a", "b", "n", "at", "tags", "w", "pairs", "v", "g", "s", "seen", "seen_at", "seen_n"]
NAMES += ["loved", "love"]
WORDS = ["x", "y y", 'quo"te', "a\nb", "7", "07", "7.0", "-", "NA", "", "é", "true", "1e3"]
NUMBERS = ["", "-", "0", "1", "2.5", "-3", "1e4", "007", " 8"]
TIMES = ["", "2024-01-31", "2024-02-29 08:05:30", "1700000000", "-"]
VALUES = ["x", "y", "7", "NA", "z"]


def rows(random, count):
    def one(values):
        return values[random.integers(len(values))]

    def several(values):
        return [one(values) for _ in range(random.integers(5))]

    def weighted():
        tags = several(VALUES)
        tags = [] if tags == ["NA"] else tags  # no value, so no weight
        return "|".join(tags), "|".join(one(["1", "0.25", "2"]) for _ in tags)

    table = []
    for _ in range(count):
        pairs = "|".join(one(["x", "x:2", "7:0.5", "y:"]) for _ in several(VALUES))
        kind, level = one(["yes", "no", "7", "7.0"]), one(["1", "0.5", "3"])
        middle = [one(WORDS), one(WORDS), one(NUMBERS), one(TIMES), *weighted(), pairs]
        events = random.integers(5)
        past = ["|".join(one(kinds) for _ in range(events)) for kinds in (WORDS, TIMES, NUMBERS)]
        past = past if "NA" not in past and "-" not in past else [""] * 3  # a missing text is no event
        vector = one(["", "1 2", "0.5 -1e-3"])
        table.append([one("01"), kind, *middle, vector, one(WORDS), level, *past, *weighted()])
    return table


def write_tsv(path, table):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(table)


def batches(recipe, part, schema=None):
    dataset = open_part(recipe, schema or measured(recipe, recipe.schema()), part)
    return None if dataset is None else list(dataset.batches())


def assert_same(raw, prepared):
    """Each gives the other's batches, also as a model reads them that was trained from the other."""
    known = {recipe.source.file: measured(recipe, recipe.schema()) for recipe in (raw, prepared)}
    for part in PARTS:
        expected = batches(raw, part)
        for recipe, schema in ((prepared, known[raw.source.file]), (raw, known[prepared.source.file])):
            found = batches(recipe, part, schema)
            assert (expected is None) == (found is None)
            assert len(expected or ()) == len(found or ())
            assert all(same(a, b) for a, b in zip(expected or (), found or (), strict=True)), part
    assert known[raw.source.file] == known[prepared.source.file]


@pytest.mark.filterwarnings("ignore:.*a quoted value spans:RuntimeWarning")  # drawn texts have line ends
@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_any_rows_are_read_as_before(tmp_path, seed, parquet):
    random = np.random.default_rng(seed)
    table = rows(random, 60 * (1 + seed))
    if parquet:  # the same texts, nothing parsed yet
        pd.DataFrame(table, columns=NAMES).to_parquet(tmp_path / "train.parquet", row_group_size=40)
    write_tsv(tmp_path / "train.tsv", table)
    (tmp_path / "raw.yaml").write_text(RECIPE.replace("train.tsv", "train.parquet") if parquet else RECIPE)
    raw = load(tmp_path / "raw.yaml")
    done = prepare(raw, tmp_path / "out")
    assert done.rows == len(table)
    assert_same(raw, load(done.recipe))


@pytest.fixture
def small_blocks(monkeypatch):
    """Bytes of text that are read at once; no part is smaller."""
    monkeypatch.setattr("satrap.data.formats.csv.BLOCK_BYTES", 1 << 14)
    return 1 << 14


def test_statistics_are_the_same_bits_from_other_pieces(tmp_path):
    raw = make(tmp_path)
    prepared = load(prepare(raw, tmp_path / "out").recipe)
    one, other = (measured(recipe, recipe.schema()) for recipe in (raw, prepared))
    assert one == other
    assert one.numeric["n"].transform[0]["standardize"]["mean"] == pytest.approx(1e6, abs=0.1)


def test_files_is_about_how_many_are_written_and_rows_keep_their_order(tmp_path, small_blocks):
    raw = make(tmp_path, 8 * small_blocks // 18)
    done = prepare(raw, tmp_path / "out", files=3)
    found = sorted((tmp_path / "out" / "train").iterdir())
    assert len(found) == done.files == 3
    values = np.concatenate([pq.read_table(path).column("n").to_numpy() for path in found])
    assert (values == pd.read_csv(tmp_path / "rows.csv")["n"].to_numpy()).all()
    assert not list((tmp_path / "out").glob("*.part"))


def test_without_a_number_of_files_each_has_256_mib_of_its_input(tmp_path):
    prepare(make(tmp_path, 10), tmp_path / "out")
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["settings"]["part_bytes"] == 256 * 1024**2


@pytest.mark.cluster
def test_processes_change_no_byte(tmp_path):
    raw = make(tmp_path, 8 * BLOCK_BYTES // 18)
    for processes in (1, 3):
        prepare(raw, tmp_path / str(processes), files=6, processes=processes)
    assert len(contents(tmp_path / "1")) >= 4
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_compressed_text_gives_the_same_bytes(tmp_path, small_blocks):
    raw = make(tmp_path, 8 * small_blocks // 18)
    packed = gzip.compress((tmp_path / "rows.csv").read_bytes(), 1)
    (tmp_path / "rows.csv.gz").write_bytes(packed)
    other = load(tmp_path / "raw.yaml", [f"data.train={tmp_path}/rows.csv.gz"])
    prepare(other, tmp_path / "gz", files=2)
    limit = -(-len(packed) // 2)
    prepare(raw, tmp_path / "plain", files=-(-(tmp_path / "rows.csv").stat().st_size // limit))
    assert len(contents(tmp_path / "gz")) > 2
    assert list(contents(tmp_path / "gz")) == list(contents(tmp_path / "plain"))
    assert read_back(tmp_path / "gz").equals(read_back(tmp_path / "plain"))


def read_back(folder):
    return pd.concat(pq.read_table(path).to_pandas() for path in sorted((folder / "train").iterdir()))


def test_what_is_done_stays_and_the_rest_follows(tmp_path, small_blocks):
    raw = make(tmp_path, 8 * small_blocks // 18)
    prepare(raw, tmp_path / "whole", files=4)

    class StopError(Exception):
        pass

    def stop(_):
        raise StopError

    for number in (1, 2):  # each call gets one file further
        with pytest.raises(StopError):
            prepare(raw, tmp_path / "out", files=4, progress=stop)
        assert len(contents(tmp_path / "out")) == number
        assert not (tmp_path / "out" / "recipe.yaml").exists()
    prepare(raw, tmp_path / "out", files=4)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*.parquet")}
    prepare(raw, tmp_path / "out", files=4)  # nothing is left to do
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_joined_columns_become_columns(tmp_path):
    make(tmp_path)
    (tmp_path / "side.csv").write_text(
        "id,colour,price\n" + "".join(f"{i},c{i % 7},{i}.5\n" for i in range(990))
    )
    text = (tmp_path / "raw.yaml").read_text()
    text = text.replace("shuffle: false", "shuffle: false, join: [{source: side.csv, on: a, key: id}]")
    text = text.replace("  a: {dim: 4}", "  a: {dim: 4}\n  colour: {dim: 4}\n  price: {numeric: true}")
    (tmp_path / "raw.yaml").write_text(text)
    raw = load(tmp_path / "raw.yaml")
    prepared = load(prepare(raw, tmp_path / "out").recipe)
    (tmp_path / "side.csv").rename(tmp_path / "gone")
    assert prepared.sections.data.join == []
    other = batches(prepared, "train")
    (tmp_path / "gone").rename(tmp_path / "side.csv")
    assert all(same(a, b) for a, b in zip(batches(raw, "train"), other, strict=True))
    (tmp_path / "side.csv").write_text("id,colour,price\n")
    with pytest.raises(DataError, match="has no rows"):
        prepare(raw, tmp_path / "out")


def test_a_split_by_time_and_files_of_their_own(tmp_path):
    random, early = np.random.default_rng(0), 0
    for name, count in (("more", 100), ("rows", 500)):
        days = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 90, count), unit="D")
        early = int((days < "2024-03-01").sum())
        frame = pd.DataFrame({"y": random.integers(0, 2, count), "at": days, "a": range(count)})
        frame.drop(columns=[] if name == "rows" else "at").to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "raw.yaml").write_text(
        "data: {train: rows.csv, validation: more.csv, shuffle: false, batch_size: 20,\n"
        "       split: {column: at, test: 2024-03-01}}\n"
        "labels: [y]\nfeatures:\n  a: {dim: 4}\nmodel: {name: dnn, hidden: [8]}\n"
    )
    raw = load(tmp_path / "raw.yaml")
    prepared = load(prepare(raw, tmp_path / "out").recipe)
    assert_same(raw, prepared)
    sizes = [sum(batch.size for batch in batches(prepared, part)) for part in PARTS]
    assert sizes == [early, 100, 500 - early]


def test_a_changed_input_is_refused(tmp_path):
    raw = make(tmp_path)
    prepare(raw, tmp_path / "out")
    before = contents(tmp_path / "out")
    with (tmp_path / "rows.csv").open("a") as file:
        file.write("1,2,3\n")
    with pytest.raises(DataError, match="the input has changed") as caught:
        prepare(raw, tmp_path / "out")
    assert caught.value.where == str(tmp_path / "rows.csv")
    assert contents(tmp_path / "out") == before


def test_an_input_that_changes_meanwhile_is_refused(tmp_path):
    raw = make(tmp_path)

    def append(_):
        with (tmp_path / "rows.csv").open("a") as file:
            file.write("1,2,3\n")

    with pytest.raises(DataError, match="the input has changed"):
        prepare(raw, tmp_path / "out", progress=append)
    assert not (tmp_path / "out" / "recipe.yaml").exists()


@pytest.mark.parametrize(
    ("line", "what", "column"),
    [
        ("1,hello,3", "value 'hello' is not a number", ", column 'n'"),
        ("2,1.5,3", "value 2 is neither 0 nor 1", ", column 'y'"),
        ("1,1.5", "a row has 2 values, the header has 3", ": 1,1.5"),
    ],
)
def test_a_bad_line_is_named_by_file_and_row(tmp_path, small_blocks, line, what, column):
    raw = make(tmp_path, 4 * small_blocks // 18)
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    lines[3_001] = line  # the first line is the header, and rows count from 1
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as caught:
        prepare(raw, tmp_path / "out", files=4)
    assert caught.value.what == what
    assert caught.value.where == f"{tmp_path}/rows.csv, row 3001{column}"
    assert 0 < len(contents(tmp_path / "out")) < 4
    lines[3_001] = "1,1.5,3"
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(
        DataError, match="the input has changed"
    ):  # before it was repaired, parts were written
        prepare(raw, tmp_path / "out", files=4)


def test_no_rows(tmp_path):
    raw = make(tmp_path, 0)
    with pytest.raises(DataError, match="no rows"):
        prepare(raw, tmp_path / "out")


def test_the_model_of_prepared_files_knows_raw_files(tmp_path):
    """Schema and statistics are the same: either scores rows of the other."""
    raw = make(tmp_path)
    prepared = load(prepare(raw, tmp_path / "out").recipe)
    assert raw.schema() == prepared.schema()
    train = open_part(raw, raw.schema(), "train")
    assert replace(measure(raw.schema(), train).labels[0]) == measured(prepared, prepared.schema()).labels[0]


def test_what_decides_no_byte_may_change_meanwhile(tmp_path):
    prepare(make(tmp_path, 50), tmp_path / "out")
    prepare(load(tmp_path / "raw.yaml", ["data.batch_size=7", "training.epochs=3"]), tmp_path / "out")
    assert load(tmp_path / "out" / "recipe.yaml").sections.data.batch_size == 7
    with pytest.raises(ConfigError, match="data differs"):
        prepare(load(tmp_path / "raw.yaml", ["data.missing=x"]), tmp_path / "out")
