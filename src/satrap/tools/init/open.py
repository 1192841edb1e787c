"""Opening of data files, with detection of the CSV format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.dataset import open_source
from satrap.data.encode.encoder import MISSING
from satrap.data.formats.csv import CsvOptions
from satrap.data.formats.files import find_files, guess_format
from satrap.data.formats.numerals import Numerals
from satrap.data.source import Scan, Source
from satrap.errors import ConfigError

_SEPARATORS = ",;\t|", " "
_LIST = r"^\s*[^,\s]+(,[^,]*){2,}$"
"""Three or more values separated by commas."""


def open_data(
    sources: Sequence[str],
    kind: str | None = None,
    separator: str | None = None,
    encoding: str = "utf-8",
    *,
    quote: str = '"',
    names: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> tuple[Source, CsvOptions, str]:
    """Return an open source, the format of its CSV files, and its file format.

    For CSV files it detects the column separator, a leading comment, blanks around values, and the number
    format. With `names` of columns there is no header, so the separator and comment are not detected. Columns
    to `drop` are not read. Raises `ConfigError` for files of an unknown format.
    """
    try:
        kind = kind or guess_format(find_files(list(sources))[0].name)
    except ConfigError as error:
        raise ConfigError(error.what, fix="use --format csv, tsv, parquet or arrow") from error
    if names and kind not in ("csv", "tsv"):
        raise ConfigError(f"--names is for CSV and TSV files, not for {kind}", fix="remove --names")
    csv = CsvOptions(separator=separator, encoding=encoding, quote=quote, columns=tuple(names) or None)

    def opened(**options: Any) -> Source:
        nonlocal csv
        csv = replace(csv, **options)
        return open_source(list(sources), format=kind, csv=csv)

    source = opened()
    if kind not in ("csv", "tsv"):
        return source, csv, kind
    if not names and len(source.names) == 1 and source.names[0].startswith("#"):
        source = opened(comment="#")
    if not names and separator is None and len(source.names) == 1:
        mark = _separator(source.names[0])
        source = opened(separator=mark) if mark else source
    first = _first(source, drop)
    row = first.slice(0, 1).to_pylist()[0].values() if first else ()
    if any(name != name.strip() for name in source.names) or any(v and v != v.strip() for v in row):
        source = opened(strip=True)
        first = _first(source, drop)
    if (
        first
        and (numerals := numerals_of(first, fractions=kind == "tsv" or csv.separator not in (None, ",")))
        != Numerals()
    ):
        source = opened(decimal=numerals.decimal, thousands=numerals.thousands)
    return source, csv, kind


def _separator(header: str) -> str | None:
    """Return the most frequent separator in a header, a blank only if there is no other separator."""
    best = (max(marks, key=header.count) for marks in _SEPARATORS)
    return next((mark for mark in best if mark in header), None)


def _first(source: Source, drop: Sequence[str]) -> pa.Table | None:
    """Return the first rows, without columns to drop and duplicate column names."""
    names = [name for name, count in Counter(source.names).items() if count == 1 and name not in drop]
    piece = next(iter(source.scan(Scan(ids=names, numbers=()), None)), None)
    return piece.table if piece else None


def numerals_of(table: pa.Table, *, fractions: bool) -> Numerals:
    """Return the format of numbers in text columns: plain unless all values of a column have another format.

    Args:
        table: some rows.
        fractions: whether a comma may be the decimal mark. It may not in a file with commas between columns,
            where `1,2` in quotes is a list.
    """
    english, german = Numerals(".", ","), Numerals(",", ".")
    numerals, lists = Numerals(), False
    for name in table.column_names:
        values = pc.utf8_trim_whitespace(table.column(name).combine_chunks())
        values = values.filter(pc.invert(pc.is_in(values, pa.array(MISSING))))
        commas = values.filter(pc.match_substring(values, ","))
        if not len(commas):
            continue
        if fractions and _all(commas, german.pattern) and _all(values, german.pattern):
            dots = pc.any(pc.match_substring(commas, ".")).as_py()
            numerals = german if dots or numerals == german else Numerals(",")
        elif _all(values, english.pattern):
            numerals = english if numerals == Numerals() else numerals
        elif pc.any(pc.match_substring_regex(commas, _LIST)).as_py():
            lists = True
    return Numerals() if lists and numerals != Numerals() else numerals


def _all(values: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, f"^(?:{pattern})$")).as_py())
