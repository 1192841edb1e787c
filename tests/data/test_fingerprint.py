"""Data is the same if its content is, whatever its files are called and when they were written."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from satrap import Categorical, Numeric, Schema, data
from satrap.data import fingerprint as module
from satrap.data.fingerprint import Fingerprint, difference, unsure

SCHEMA = Schema(["y"], {"user": Categorical(dim=4), "x": Numeric()})


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    names = [f"u{i}" for i in random.integers(0, 9, rows)]
    return pd.DataFrame({"user": names, "x": random.random(rows), "y": random.integers(0, 2, rows)})


def prints(source: Any, **options: Any) -> list[Fingerprint]:
    return [Fingerprint(**one) for one in data.read(source, SCHEMA, **options).fingerprint()]


@pytest.fixture(params=["csv", "parquet"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three files of 40 rows each, with equal sizes in CSV but for the digits of a number."""
    (tmp_path / "rows").mkdir()
    for number in range(3):
        write(tmp_path / "rows" / f"part-{number}.{request.param}", frame(40, number))
    return tmp_path / "rows"


def write(path: Path, rows: pd.DataFrame) -> None:
    if path.suffix == ".csv":
        rows.to_csv(path, index=False, float_format="%.4f")
    else:
        rows.to_parquet(path)


def of(folder: Path) -> list[Fingerprint]:
    suffix = next(folder.iterdir()).suffix
    return prints(f"{folder}/*{suffix}")


def second(folder: Path) -> Path:
    return sorted(folder.iterdir())[1]


def test_other_times_names_and_folders_are_the_same_data(folder: Path) -> None:
    before = of(folder)
    for path in sorted(folder.iterdir()):
        path.rename(path.with_stem(path.stem.replace("part", "day")))
    moved = shutil.copytree(folder, folder.parent / "elsewhere")
    os.utime(second(moved), (1, 1))
    assert difference(before, of(moved)) is None
    assert unsure(before, of(moved)) == []


def test_rows_that_come_go_or_change_places_are_named(folder: Path) -> None:
    path, before = second(folder), of(folder)
    for rows in (frame(41, 1), frame(39, 1)):
        write(path, rows)
        name, what = difference(before, of(folder)) or ("", "")
        assert name == os.path.relpath(path) or name == str(path)
        counted = f"{len(rows)} rows now, 40 before"
        assert what == (counted if path.suffix == ".parquet" else what)
        assert "before" in what
    if path.suffix == ".csv":
        write(path, frame(40, 1)[::-1])
        assert difference(before, of(folder)) == (str(path), "its content has changed")


def added(folder: Path) -> str:
    shutil.copy(second(folder), folder / f"part-0a{second(folder).suffix}")
    return "the file is new"


def removed(folder: Path) -> str:
    second(folder).unlink()
    return "the file is missing"


def renamed(folder: Path) -> str:
    path = second(folder)
    path.rename(path.with_stem("part-9"))
    return f"the file is missing, and {folder}/part-9{path.suffix} is new"


def swapped(folder: Path) -> str:
    first, other, _ = sorted(folder.iterdir())
    first.rename(folder / "aside")
    other.rename(first)
    (folder / "aside").rename(other)
    return r"its content has changed|[\d,]+ bytes now"


@pytest.mark.parametrize("change", [added, removed, renamed, swapped])
def test_files_that_come_go_or_change_places_are_named(change: Callable[[Path], str], folder: Path) -> None:
    before = of(folder)
    what = change(folder)
    found = difference(before, of(folder))
    assert found is not None
    assert re.match(what, found[1])
    assert found[0].startswith(str(folder))


def test_the_order_of_a_list_counts(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    found = difference(prints(paths), prints(paths[::-1]))
    assert found == (paths[2], "the files or their order changed: 3 files now, 3 before")
    assert difference(prints(paths), prints([*paths, paths[0]])) is not None


def test_of_a_large_file_places_are_compared_and_its_time_is_a_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES", 1 << 16)
    monkeypatch.setattr(module, "BLOCK", 1 << 10)
    path, rows = tmp_path / "rows.csv", frame(20_000)
    write(path, rows)
    os.utime(path, (5, 5))
    before = prints(path)
    assert not before[0].whole
    write(path, rows)
    os.utime(path, (5, 5))
    assert (difference(before, prints(path)), unsure(before, prints(path))) == (None, [])
    os.utime(path, (9, 9))
    assert (difference(before, prints(path)), unsure(before, prints(path))) == (None, [str(path)])
    write(path, pd.concat([rows[10_000:], rows[:10_000]]))
    assert difference(before, prints(path)) == (str(path), "its content has changed")


def test_many_files_count_as_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    before = of(folder)
    assert [one.name for one in before] == [f"3 files, the first {sorted(folder.iterdir())[0]}"]
    os.utime(second(folder), (1, 1))
    assert (difference(before, of(folder)), unsure(before, of(folder))) == (None, [])
    write(second(folder), frame(41, 1))
    assert difference(before, of(folder)) is not None


def test_files_elsewhere_are_compared_by_size_and_tag() -> None:
    system = fsspec.filesystem("memory")
    url, text = "memory://fingerprints/rows.csv", "user,x,y\na,1,0\n"
    system.pipe_file(url, text.encode())
    before = prints(url)
    assert (difference(before, prints(url)), unsure(before, prints(url))) == (None, [])
    system.pipe_file(url, text.encode())
    assert (difference(before, prints(url)), unsure(before, prints(url))) == (None, [before[0].name])
    system.pipe_file(url, (text + "b,2,1\n").encode())
    assert difference(before, prints(url)) == (before[0].name, "21 bytes now, 15 before")
    system.rm(url)


@pytest.mark.parametrize("rows", [100, 9_000])
def test_tables_in_memory_are_compared_by_what_is_trained(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRETCHES", 8)
    monkeypatch.setattr(module, "STRETCH", 100)
    table = frame(rows)
    before = prints(table)
    chunked = pa.concat_tables(
        [pa.Table.from_pandas(table[: rows // 3]), pa.Table.from_pandas(table[rows // 3 :])]
    )
    columns = {
        "y": table["y"].to_numpy(np.int8),
        "x": list(table["x"]),
        "user": table["user"].astype("category"),
    }
    for same in (table, table.assign(unused=1), chunked, columns):
        assert difference(before, prints(same)) is None
        assert difference(before, prints(same, shuffle=True, rows=data.RowSplit(2, (1,)))) is None
    longer = pd.concat([table, table[:1]])
    assert difference(before, prints(longer)) == ("DataFrame", f"{rows + 1:,} rows now, {rows:,} before")
    for other in (table[::-1], table.sample(frac=1, random_state=3), frame(rows, 1)):
        assert difference(before, prints(other)) == ("DataFrame", "its content has changed")


def test_a_file_is_not_a_table_in_memory(folder: Path) -> None:
    one, other = of(folder)[:1], prints(frame(40))
    for before, after in ((one, other), (other, one)):
        assert difference(before, after) is not None


def test_a_row_that_cannot_be_used_is_left_to_reading_it() -> None:
    [found] = prints({"user": ["a", "b"], "x": ["1", "many"], "y": [0, 1]})
    assert (found.rows, found.digest) == (2, "")


def test_side_tables_count(tmp_path: Path) -> None:
    schema = Schema(["y"], {"user": Categorical(dim=4), "city": Categorical(dim=4)})

    def joined(cities: list[str], source: Any) -> list[Fingerprint]:
        side = {"user": ["u0", "u1", "u2"], "city": cities}
        if source is not None:
            pd.DataFrame(side).to_csv(source, index=False)
        join = data.Join(source=source or side, on="user")
        found = data.read(frame(20), schema, join=[join]).fingerprint()
        return [Fingerprint(**one) for one in found]

    for source in (None, str(tmp_path / "cities.csv")):
        before = joined(["A", "B", "C"], source)
        assert len(before) == 2
        assert difference(before, joined(["A", "B", "C"], source)) is None
        assert difference(before[1:], joined(["A", "C", "B"], source)[1:]) is not None
