"""Classification of columns: category, number, list of values, vector, time, or unused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.encode.encoder import MISSING
from satrap.data.formats.columns import is_text, to_floats
from satrap.schema import MAX_DIM
from satrap.tools.init.names import meaning, words
from satrap.tools.init.profile import MOST_TEXTS, Column, flat

Kind = Literal["category", "number", "values", "vector", "time", "unused"]
_ROWS_EACH = 20
"""Least rows per unique number for which its values are also useful as ids."""
_SEPARATORS = "|", ";", "^", ",", " "
_STAMP = (
    r"^\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ]\d{1,2}:\d{2}.*)?$|^\d{1,2}[./]\d{1,2}[./]\d{4}( \d{1,2}:\d{2}.*)?$"
)
_MONTHS = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE_IN_WORDS = rf"(?i)^(\w+,? )?(\d{{1,2}}\.?[ -]{_MONTHS}[ -,]|{_MONTHS} \d{{1,2}},? )[ ]?\d{{2,4}}\b"
_MONEY = r"^\s*[-+(]?\s*([$€£¥]\s*[\d.,' ]+|[\d.,' ]*\d\s*[$€£¥%])\s*\)?\s*$"
_TEXTS = pa.array(MISSING)


@dataclass(slots=True)
class Decision:
    """The kind of a column and the reason.

    For a number, `numbers` is float64[n], the sample without missing values; `also_id` suggests using it as
    an id as well. For a list of values, `separator` splits its text; None for Arrow lists. `alone` is the AUC
    of predicting the label from this column alone.
    """

    kind: Kind
    why: str
    separator: str | None = None
    also_id: bool = False
    alone: float = 0.5
    numbers: Any = field(default=None, repr=False)


_TIME_WORDS = set(words("time timestamp date datetime ts day created updated at epoch"))


def decide(column: Column, sample: pa.Array) -> Decision:
    """Return the kind of a column, from facts about all its rows and a sample of its values."""
    if column.unusable:
        return Decision("unused", column.unusable)
    if column.values == 0:
        return Decision("unused", "no values")
    if column.distinct.count == 1 and column.missing == 0:
        return Decision("unused", "constant")
    if column.is_list:
        return _of_lists(column)
    sample = flat(sample).drop_null()
    if is_text(sample.type):
        try:
            sample = pc.utf8_trim_whitespace(sample.cast(pa.string()))
        except pa.ArrowInvalid:  # bytes of one length are ids, but mixed with text they would be text
            return Decision("unused", "bytes that are not UTF-8 text")
        sample = sample.filter(pc.invert(pc.is_in(sample, _TEXTS)))
    if _is_time(column, sample):
        return Decision("time", "a time")
    if column.numbers:
        odd = pa.array(sorted(column.odd), pa.string())
        return _of_numbers(column, to_floats(sample, odd if column.odd else None))
    if column.infinite:
        return Decision("unused", "infinite values")
    return _of_texts(column, sample)


def _unique(column: Column) -> bool:
    return column.values >= 100 and column.distinct.count >= 0.9 * column.values


def _of_lists(column: Column) -> Decision:
    if column.fractions or column.infinite:
        if column.infinite or column.texts:
            return Decision("unused", "lists of measurements with non-finite numbers")
        if column.shortest < column.longest or column.longest > MAX_DIM:
            sizes = f"{column.shortest} to {column.longest} numbers"
            return Decision("unused", f"lists of {sizes}: a vector needs a fixed length of at most {MAX_DIM}")
        return Decision("vector", f"lists of {column.longest} numbers")
    per_row = column.values / max(1, column.rows - column.missing)
    return Decision("values", f"lists, {per_row:.1f} values each")


def _is_time(column: Column, sample: pa.Array) -> bool:
    if column.type is not None and (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        return True
    if column.numbers:
        seconds = column.low >= 3e8 and column.high < 4e9
        millis = column.low >= 3e11 and column.high < 4e12
        named = bool(_TIME_WORDS & set(words(column.name)))
        return column.fractions == 0 and named and (seconds or millis)
    if not len(sample) or not is_text(sample.type):
        return False
    stamps = pc.mean(pc.cast(pc.match_substring_regex(sample, _STAMP), pa.float64())).as_py()
    return float(stamps) > 0.99


def _of_numbers(column: Column, values: Any) -> Decision:
    distinct, whole = column.distinct.count, column.fractions == 0
    if whole and _is_day(column, values):
        return Decision("unused", "days as numbers: write them as 2024-01-31 to use them as times")
    if whole and column.ascending and column.rows > 2:
        return Decision("unused", "a row number")
    if distinct == 2:
        return Decision("category", "binary")
    named = meaning(column.name)
    large = column.high >= 2**31 or column.low <= -(2**31)
    if whole and (named in ("id", "class") or (large and named is None)):
        if _unique(column):
            return Decision("unused", "a different id in almost every row")
        return Decision("category", "whole numbers used as ids")
    dense = whole and distinct >= 300 and distinct > 0.1 * (column.high - column.low + 1)
    if dense and column.values >= _ROWS_EACH * distinct:
        return Decision("number", "a number, or an id: used as both", also_id=True, numbers=values)
    return Decision("number", "a number", numbers=values)


def _is_day(column: Column, values: Any) -> bool:
    """Return whether whole numbers, float64[n], are days such as 20240131."""
    if not _TIME_WORDS & set(words(column.name)) or not 1900_01_01 <= column.low <= column.high <= 2100_12_31:
        return False
    numbers = values[~np.isnan(values)].astype(np.int64)
    month, day = numbers // 100 % 100, numbers % 100
    return bool(((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def _of_texts(column: Column, sample: pa.Array) -> Decision:
    if not is_text(sample.type):  # times of day, decimals and the like
        return Decision("category", "a category")
    if pc.all(pc.match_substring_regex(sample, _DATE_IN_WORDS)).as_py():
        return Decision("unused", "dates in words: write them as 2024-01-31 to use them as times")
    if column.distinct.count > 20 and pc.all(pc.match_substring_regex(sample, _MONEY)).as_py():
        why = f"a category; remove the sign in {sample[0].as_py()!r} to use it as a number"
        return Decision("category", why)
    separator = _separator(sample)
    if pc.all(pc.match_substring_regex(sample, r"^\s*(\{.*\}|\[.*\])\s*$")).as_py():
        return Decision("unused", "JSON: extract the relevant fields into columns")
    if separator is not None:
        return Decision("values", f"several values, separated by {separator!r}", separator=separator)
    length = float(pc.mean(pc.utf8_length(sample)).as_py() or 0)
    spaces = float(pc.mean(pc.count_substring(sample, " ")).as_py() or 0)
    if _unique(column):
        return Decision("unused", "a different text in almost every row")
    if (spaces >= 5 or length > 100) and column.distinct.count > 0.3 * column.values:
        return Decision("unused", "free text: not supported yet")
    if column.texts <= min(MOST_TEXTS, 0.5 * column.values):
        return Decision("category", "numbers and text mixed")
    return Decision("category", "a category")


def _separator(sample: pa.Array) -> str | None:
    """Return the separator of texts with several values; such values recur in different combinations."""
    whole = sample.take(pa.array(np.arange(min(len(sample), 20_000))))
    distinct = len(pc.unique(whole))
    if distinct < 8:
        return None
    for separator in _SEPARATORS:
        several = float(pc.mean(pc.cast(pc.match_substring(whole, separator), pa.float64())).as_py())
        if several < 0.1:
            continue
        parts = pc.list_flatten(pc.split_pattern(whole, separator))
        if separator == " " and not pc.all(pc.match_substring_regex(parts, r"^[0-9a-f]+$")).as_py():
            continue
        reuse, reused = len(whole) / distinct, len(parts) / len(pc.unique(parts))
        if reused > 2 * reuse and reused > 3:
            return separator
    return None
