"""Write Parquet files with the shape of MLPerf's DLRM data, and labels that a model can learn.

    python examples/dlrm/generate.py [OUT] [--rows 200000] [--files 4] [--scale 0.001] [--exponent 1.05]
        [--seed 1] [--no-multi-hot]

OUT gets train-000.parquet and so on with ROWS rows in total, validation.parquet and test.parquet with a tenth
of that each. It defaults to the folder that the recipes dlrm_mlperf.yaml and dlrm_dcnv2_mlperf.yaml read.

A row has a label (int8: 0 or 1), 13 counts I1 to I13 (int32 >= 0) and 26 features C1 to C26 of int32 ids.
C21, for example, is a list of 100 ids; without multi-hot every feature is one id. SCALE multiplies the
numbers of ids in MLPerf's tables; each keeps at least 3. Ids follow a power law: id k has a probability of
about (k + 1)^-EXPONENT.

Labels come from a hidden logistic model: each id has a random effect, and effects of neighbouring features
are also multiplied; counts have a small effect. About a quarter of the labels are 1.

A row depends only on its part, its number and the options from SCALE on, so more rows or another number of
files do not change it. Rows are generated and written 8192 at a time: memory does not grow with their number.
"""

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

OUT = Path(__file__).resolve().parents[1] / "recipes" / "data" / "dlrm"
PARTS = {"train": 1, "validation": 10, "test": 10}
"""Part -> rows of `--rows` for one row of the part."""
BLOCK = 8192
"""Rows of one random generator and of one Parquet row group."""
NUMBERS = 13

# Rows of the tables and ids per sample, in the order of Criteo's columns, from MLPerf Training:
# github.com/mlcommons/training, recommendation_v2/torchrec_dlrm/README.MD.
# fmt: off
IDS = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10,
       2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36)
HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
# fmt: on


def zipf(uniform: npt.NDArray[np.float64], ids: int, exponent: float) -> npt.NDArray[np.int32]:
    """Turn numbers from [0, 1) into ids 0 to `ids` - 1, where id k has a weight of about (k + 1)^-exponent.

    The integer part of a continuous power law on [1, ids + 1), less 1: the exact weight of k is the integral
    of x^-exponent from k + 1 to k + 2.
    """
    end, power = np.log(ids + 1), 1 - exponent
    log = uniform * end if power == 0 else np.log1p(uniform * np.expm1(power * end)) / power
    return np.minimum(np.exp(log).astype(np.int32), ids) - 1  # rounding may reach the end


def block(number: int, part: int, options: argparse.Namespace) -> pa.Table:
    """Make rows BLOCK * number to BLOCK * (number + 1) of a part."""
    hidden = np.random.default_rng([options.seed, len(PARTS)])
    effects, slopes = hidden.normal(size=(len(IDS), 4096)), hidden.normal(size=NUMBERS)
    random = np.random.default_rng([options.seed, part, number])
    counts = np.exp(1 + 1.5 * random.normal(size=(BLOCK, NUMBERS))).astype(np.int32)
    columns: dict[str, Any] = {f"I{i}": column for i, column in enumerate(counts.T, start=1)}
    of_features = []
    for i, (size, hot) in enumerate(zip(IDS, HOT, strict=True)):
        hot = hot if options.multi_hot else 1
        ids = zipf(random.random(BLOCK * hot), max(3, round(size * options.scale)), options.exponent)
        offsets = pa.array(np.arange(0, len(ids) + 1, hot, dtype=np.int32))
        columns[f"C{i + 1}"] = pa.ListArray.from_arrays(offsets, ids) if hot > 1 else ids
        of_features.append(effects[i][ids % 4096].reshape(BLOCK, hot).sum(axis=1) / hot**0.5)
    effect = np.stack(of_features)
    logit = (effect.sum(axis=0) + (effect[1:] * effect[:-1]).sum(axis=0)) / 4
    logit += np.log1p(counts) @ slopes / 8
    logit -= logit.mean() + 1.5  # a few ids are in most samples, so the mean differs between seeds
    label = random.random(BLOCK) < 1 / (1 + np.exp(-logit))
    return pa.table({"label": label.astype(np.int8), **columns})


def blocks(part: str, first: int, last: int, options: argparse.Namespace) -> Iterator[pa.Table]:
    """Yield rows first to last - 1 of a part."""
    for number in range(first // BLOCK, -(-last // BLOCK)):
        start, end = max(first - number * BLOCK, 0), min(last - number * BLOCK, BLOCK)
        yield block(number, list(PARTS).index(part), options).slice(start, end - start)


def generate(options: argparse.Namespace) -> None:
    """Write all parts; print each file and its rows."""
    options.out.mkdir(parents=True, exist_ok=True)
    if any(options.out.glob("*.parquet")):
        raise SystemExit(f"{options.out} has Parquet files already: remove them, or name another folder")
    for part, share in PARTS.items():
        rows, files = options.rows // share, options.files if part == "train" else 1
        for i in range(files):
            path = options.out / (f"train-{i:03}.parquet" if part == "train" else f"{part}.parquet")
            first, last = rows * i // files, rows * (i + 1) // files
            tables = blocks(part, first, last, options)
            head = next(tables)
            with parquet.ParquetWriter(path, head.schema) as writer:
                for table in chain([head], tables):
                    writer.write_table(table)
            print(f"{path}: {last - first:,} rows")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--scale", type=float, default=0.001)
    parser.add_argument("--exponent", type=float, default=1.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--multi-hot", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args(arguments)
    if options.rows < 10 or not 1 <= options.files <= options.rows or not 0 < options.scale <= 50:
        parser.error("ROWS is at least 10, FILES from 1 to ROWS, SCALE above 0 and at most 50")
    return options


if __name__ == "__main__":
    generate(parse())
