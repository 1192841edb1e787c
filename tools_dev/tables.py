"""Random tables through `satrap init`, `train`, `evaluate` and `predict`: right, or one clear error.

A case draws columns of many types, with nulls, in one or two training files and one to three files to score,
as CSV or Parquet. Files to score have columns in another order, one more, one fewer, or of another type.

The oracle knows what was written. An answer is 0, or one error of at most four lines with code 1 or 2. What
`predict` writes has each row's own marker and values under their names, and the scores that the row gets when
its file is scored alone.

    python -m tools_dev.tables --minutes 30 --seed 1

Each round of `ROUND` cases prints its seed; Hypothesis makes a case that fails smaller.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import math
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.command import satrap

ROUND = 50
MARKER, LABEL = "row", "y"
Random = np.random.Generator
DAY = dt.datetime(2024, 1, 31, 8, 5)

KINDS: dict[str, tuple[pa.DataType, Callable[[Random, int], Any]]] = {
    "int8": (pa.int8(), lambda r, n: int(r.integers(-9, 9))),
    "int32": (pa.int32(), lambda r, n: int(r.integers(0, 9))),
    "int64": (pa.int64(), lambda r, n: int(r.integers(0, 2**60))),
    "uint64": (pa.uint64(), lambda r, n: int(r.integers(0, 9)) + 2**63),
    "float32": (pa.float32(), lambda r, n: float(np.float32(r.normal()))),
    "float64": (pa.float64(), lambda r, n: float(r.normal() * 10.0 ** r.integers(-5, 9))),
    "bool": (pa.bool_(), lambda r, n: bool(r.integers(2))),
    "text": (
        pa.string(),
        lambda r, n: r.choice(["Bern", "Zürich", 'a "b", c', "two\nlines", " x", "", "7", "NA"]),
    ),
    "large": (pa.large_string(), lambda r, n: f"item{r.integers(9)}"),
    "words": (pa.string(), lambda r, n: "|".join(r.choice(["pop", "rock", "jazz"], r.integers(1, 4)))),
    "key": (pa.string(), lambda r, n: f"k{n}"),
    "view": (pa.string_view(), lambda r, n: f"view{r.integers(9)}"),
    "bytes": (pa.binary(), lambda r, n: f"b{r.integers(9)}".encode()),
    "raw": (pa.binary(), lambda r, n: bytes([255, int(r.integers(9))])),
    "fixed": (pa.binary(4), lambda r, n: f"f{r.integers(100, 109)}".encode()),
    "uuid": (pa.uuid(), lambda r, n: uuid.UUID(int=int(r.integers(9)) * 7919**7)),
    "decimal": (pa.decimal128(12, 2), lambda r, n: Decimal(int(r.integers(0, 9999))) / 100),
    "date": (pa.date32(), lambda r, n: DAY.date() + dt.timedelta(int(r.integers(99)))),
    "stamp": (pa.timestamp("ms"), lambda r, n: DAY + dt.timedelta(seconds=int(r.integers(9**6)))),
    "zoned": (pa.timestamp("us", "UTC"), lambda r, n: (DAY + dt.timedelta(n)).replace(tzinfo=dt.UTC)),
    "clock": (pa.time64("us"), lambda r, n: dt.time(int(r.integers(24)), 5)),
    "span": (pa.duration("s"), lambda r, n: dt.timedelta(seconds=int(r.integers(99)))),
    "ints": (pa.list_(pa.int32()), lambda r, n: r.integers(0, 9, r.integers(0, 4)).tolist()),
    "texts": (pa.list_(pa.string()), lambda r, n: [f"t{i}" for i in r.integers(0, 9, r.integers(0, 4))]),
    "vector": (pa.list_(pa.float32(), 2), lambda r, n: [float(np.float32(x)) for x in r.normal(size=2)]),
    "struct": (pa.struct([("a", pa.int64())]), lambda r, n: {"a": int(r.integers(9))}),
    "map": (pa.map_(pa.string(), pa.int64()), lambda r, n: [("a", int(r.integers(9)))]),
    "deep": (pa.list_(pa.list_(pa.int8())), lambda r, n: [[1], [int(r.integers(9))]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda r, n: f"d{r.integers(5)}"),
    "null": (pa.null(), lambda r, n: None),
}
LABELS = {
    "int": (pa.int64(), lambda r, n: int(r.integers(2))),
    "bool": (pa.bool_(), lambda r, n: bool(r.integers(2))),
    "yes": (pa.string(), lambda r, n: r.choice(["no", "yes"])),
    "number": (pa.float64(), lambda r, n: float(r.normal())),
    "class": (pa.string(), lambda r, n: r.choice(["red", "green", "blue"])),
}
OTHERS = {
    "int32": ["int64", "float64", "int8", "text"],
    "int64": ["int32", "uint64", "float64"],
    "float32": ["float64", "int32"],
    "text": ["large", "dictionary", "bytes", "view", "int32"],
    "dictionary": ["text", "large"],
    "stamp": ["zoned", "date"],
    "decimal": ["float64", "int32"],
    "uuid": ["text"],
    "ints": ["texts", "int32"],
}
"""Kinds that a column may have in another file."""
FLAT = [
    kind
    for kind, (arrow, _) in KINDS.items()
    if not pa.types.is_nested(arrow) and kind not in ("raw", "span")
]
NAMES = ["user_id", "price", "city", "a.b", "a", "tags", "created at", "größe", 'q"t', "x,y", "score", "item"]


@dataclass(frozen=True)
class Table:
    """A file: name -> kind and values; None is null."""

    csv: bool
    columns: dict[str, tuple[str, list[Any]]]

    def __repr__(self) -> str:
        rows = len(self.columns[MARKER][1])
        return f"{rows} rows of {'CSV' if self.csv else 'Parquet'}: " + ", ".join(
            f"{name} {kind}{' with null' * (None in values)}" for name, (kind, values) in self.columns.items()
        )

    def write(self, path: Path) -> Path:
        path = path.with_suffix(".csv" if self.csv else ".parquet")
        if self.csv:
            with path.open("w", encoding="utf-8", newline="") as file:
                out = csv.writer(file, lineterminator="\n")
                out.writerow(self.columns)
                out.writerows(
                    zip(*(map(as_text, values) for _, values in self.columns.values()), strict=True)
                )
        else:
            arrays = [array_of(kind, values) for kind, values in self.columns.values()]
            pq.write_table(pa.Table.from_arrays(arrays, list(self.columns)), path)
        return path

    def values(self, name: str) -> list[Any]:
        """What a reader sees: of CSV, text."""
        if name not in self.columns:
            return [None] * len(next(iter(self.columns.values()))[1])
        values = self.columns[name][1]
        return [as_text(value) for value in values] if self.csv else values


def array_of(kind: str, values: Sequence[Any]) -> pa.Array:
    arrow = {**KINDS, **{f"label {k}": v for k, v in LABELS.items()}}[kind][0]
    if kind == "uuid":
        storage = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(arrow, storage)
    return pa.array(values, arrow)


def as_text(value: Any) -> str:
    """Return a value as a CSV file has it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case bytes():
            return value.decode()
        case float():
            return repr(value)
    return str(value)


@dataclass(frozen=True)
class Case:
    train: list[Table]
    score: list[Table]
    output: str
    labelled: bool


@dataclass
class Maker:
    """Makes tables of one case; rows are numbered through all of them."""

    label: str
    nulls: float
    seed: int
    made: int = 0

    def table(self, columns: dict[str, str], rows: int, *, csv: bool) -> Table:
        """Return a table of columns, name -> kind."""
        random = np.random.default_rng([self.seed, self.made])
        found: dict[str, tuple[str, list[Any]]] = {}
        for name, kind in columns.items():
            if name == MARKER:
                found[name] = "key", [f"r{self.made + i}" for i in range(rows)]
                continue
            make, nulls = (LABELS[self.label][1], 0.0) if name == LABEL else (KINDS[kind][1], self.nulls)
            values = [None if random.random() < nulls else make(random, i) for i in range(rows)]
            found[name] = kind, [v.item() if isinstance(v, np.generic) else v for v in values]
        self.made += rows
        return Table(csv, found)


def changed(draw: st.DrawFn, columns: dict[str, str], allowed: list[str]) -> dict[str, str]:
    """Return the columns of a file to score: not always those of the training files."""
    one = draw(st.sampled_from([name for name in columns if name not in (MARKER, LABEL)]))
    match draw(st.sampled_from(["same", "order", "more", "fewer", "other", "empty"])):
        case "order":
            return {name: columns[name] for name in draw(st.permutations(list(columns)))}
        case "more":
            return {MARKER: columns[MARKER], "more": draw(st.sampled_from(allowed)), **columns}
        case "fewer":
            return {name: kind for name, kind in columns.items() if name != one}
        case "other":
            return {**columns, one: draw(st.sampled_from(OTHERS.get(columns[one], [columns[one]])))}
        case "empty":
            return {**columns, one: "null"}
    return columns


@st.composite
def cases(draw: st.DrawFn) -> Case:
    csv, csv_later = draw(st.booleans()), draw(st.booleans())
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    kinds = {name: draw(st.sampled_from(FLAT if csv else list(KINDS))) for name in names}
    label = draw(st.sampled_from(list(LABELS)))
    columns = {**kinds, MARKER: "key", LABEL: f"label {label}"}
    maker = Maker(label, draw(st.sampled_from([0.0, 0.2])), draw(st.integers(0, 2**32 - 1)))
    train = [maker.table(columns, 40, csv=csv) for _ in range(draw(st.integers(1, 2)))]
    labelled = draw(st.booleans())
    if not labelled:
        del columns[LABEL]
    if csv_later:
        columns = {
            name: kind if kind not in KINDS or kind in FLAT else "text" for name, kind in columns.items()
        }
    score = []
    for _ in range(draw(st.integers(1, 3))):
        here = changed(draw, columns, FLAT if csv_later else list(KINDS))
        score.append(maker.table(here, draw(st.integers(1, 12)), csv=csv_later))
    return Case(train, score, draw(st.sampled_from(["out.csv", "out.parquet"])), labelled)


def check(case: Case, told: Counter[str]) -> None:
    """Take a case through all commands; whatever is neither right nor one clear error is raised."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train = [table.write(folder / f"train{i}") for i, table in enumerate(case.train)]
        score = [table.write(folder / f"score{i}") for i, table in enumerate(case.score)]
        small = ("training.epochs=1", "data.batch_size=16")
        recipe, run = folder / "recipe.yaml", folder / "run"
        if not said(told, "init", *train, "--label", LABEL, "--output", recipe):
            return
        sets = [part for setting in small for part in ("--set", setting)]
        if not said(told, "train", recipe, "--output", run, *sets):
            return
        inputs = [part for path in score for part in ("--input", path)]
        if case.labelled:
            said(told, "evaluate", run, *inputs)
        out = folder / case.output
        if said(told, "predict", run, *inputs, "--output", out):
            alone = []
            for i, path in enumerate(score):
                one = folder / f"alone{i}.parquet"
                assert said(told, "predict", run, "--input", path, "--output", one, "--keep", MARKER)
                alone.append(pq.read_table(one))
            strip = "\n  strip: true" in recipe.read_text(encoding="utf-8")  # as `init` saw blanks in CSV
            assert_right(case.score, pa.concat_tables(alone), out, strip)
        assert not list(folder.glob(".*.partial"))


def said(told: Counter[str], command: str, *arguments: object) -> bool:
    """Return whether a command did its work; else it told so as it must."""
    answer = satrap(command, *arguments)
    told[f"{command} {answer.code}"] += 1
    if answer.code:
        answer.assert_refused(code=answer.code if answer.code == 1 else 2)
        assert "internal error" not in answer.err, answer.err
        error = answer.err[answer.err.index("error: ") :].splitlines()[0]
        told[f"  {command}: {error[:70]}"] += 1
    return answer.code == 0


def assert_right(tables: list[Table], alone: pa.Table, path: Path, strip: bool) -> None:
    """Compare a file of predictions with what was written, and with the scores of each file alone.

    With `strip`, blanks around values of CSV are gone.
    """
    scores = alone.column_names[1:]
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    found = read(path)
    assert list(found) == [*names, *scores], (list(found), names)
    assert found[MARKER] == [value for table in tables for value in table.values(MARKER)]
    assert found[MARKER] == alone[MARKER].to_pylist()
    for name in names:
        expected = [
            value.strip() if strip and table.csv and isinstance(value, str) else value
            for table in tables
            for value in table.values(name)
        ]
        for row, (want, got) in enumerate(zip(expected, found[name], strict=True)):
            assert equal(want, got), (name, row, want, got)
    for name in scores:
        np.testing.assert_allclose(np.array(found[name], float), alone[name].to_numpy(), rtol=1e-4)


def read(path: Path) -> dict[str, list[Any]]:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return {name: table.column(name).to_pylist() for name in table.column_names}
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def equal(want: Any, got: Any) -> bool:
    """Tell whether a written value is the one that was given, as itself or as text."""
    if want is None or got is None:
        return want in (None, "") and got in (None, "")
    if isinstance(want, float) or isinstance(got, float):
        return math.isclose(float(want), float(got), rel_tol=1e-6)
    if isinstance(want, bool | bytes):
        return got in (want, as_text(want)) if isinstance(want, bool) else as_bytes(got) == want
    if isinstance(want, str) and isinstance(got, bytes):
        return want.encode() == got
    if isinstance(got, str) and not isinstance(want, str):
        match want:
            case dt.datetime():
                return pd.Timestamp(got) == pd.Timestamp(want)
            case dt.time():
                return dt.time.fromisoformat(got) == want
            case dt.timedelta():
                return int(got) == want.total_seconds()
            case Decimal() | int():
                return Decimal(got) == want
        return str(want) == got
    return bool(got == want)


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def cases_test(count: int, told: Counter[str]) -> Callable[[], None]:
    """Return a test of `count` random cases."""

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def random_tables(case: Case) -> None:
        check(case, told)

    return random_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    told: Counter[str] = Counter()
    start, seed = time.monotonic(), options.seed
    while time.monotonic() - start < 60 * options.minutes:
        print(f"seed {seed}", flush=True)
        hypothesis.seed(seed)(cases_test(ROUND, told))()
        seed += 1
    for line, count in sorted(told.items()):
        print(f"{count:6} {line}")
    if told["predict 0"] < told["init 0"] / 4:
        sys.exit("few tables came as far as predictions: the cases say little")


if __name__ == "__main__":
    main()
