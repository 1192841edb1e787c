"""Statistics of each column from reading the data once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.encode.encoder import MISSING, Missing
from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.columns import as_array, is_text, to_floats, without_views
from satrap.data.source import Scan, Source
from satrap.errors import DataError
from satrap.schema import MISSING_ID
from satrap.tools.init.sketch import Numbers, RowSample, UniqueCounter

SAMPLE_ROWS, SAMPLE_CELLS = 100_000, 20_000_000
"""Most rows and most values of the sample."""

LABEL_VALUES = 1000
"""Most unique values of the label that are counted one by one."""

MOST_TEXTS, MOST_ODD = 1000, 5
"""Non-numeric values are counted up to the first limit if they have more different texts than the second."""

_MANY = 64
"""Unique values above which a column with one or two texts is numeric, however frequent the texts are."""

_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


@dataclass(slots=True)
class Column:
    """Facts about a column, over all rows read.

    Counts are of rows, for a list column also of its values. `low` and `high` bound the finite numbers,
    `shortest` and `longest` the lengths of non-empty lists. `texts` counts values that are not numbers; with
    more than `MOST_ODD` different texts, counting stops above `MOST_TEXTS`. `odd` has the first such texts.
    `unusable` is the reason why the values cannot be a feature, set at the first such value.
    """

    name: str
    type: pa.DataType | None = None
    unusable: str = ""
    rows: int = 0
    missing: int = 0
    values: int = 0
    texts: int = 0
    odd: set[str] = field(default_factory=set)
    infinite: int = 0
    fractions: int = 0
    ascending: bool = True
    low: float = np.inf
    high: float = -np.inf
    shortest: int = 2**62
    longest: int = 0
    distinct: UniqueCounter = field(default_factory=UniqueCounter)

    @property
    def is_list(self) -> bool:
        """Whether each row holds a list of values."""
        return self.type is not None and _is_list(self.type)

    @property
    def missing_share(self) -> float:
        """Fraction of rows without a value."""
        return self.missing / max(1, self.rows)

    @property
    def numbers(self) -> bool:
        """Whether every value is a finite number, except for texts that may stand for "missing".

        The exception is one or two different texts among many numbers, or a few texts in few rows.
        """
        few = len(self.odd) <= MOST_ODD and self.texts <= self.values / 20
        many = len(self.odd) <= 2 and self.texts <= self.values / 2 and self.distinct.count > _MANY
        return (few or many) and self.infinite == 0 and self.low <= self.high

    def add(self, array: pa.Array, missing: Missing) -> None:
        """Add the next rows."""
        array = flat(array)
        self.type = array.type if self.type is None or pa.types.is_null(self.type) else self.type
        self.rows += len(array)
        if not self.unusable:
            try:
                self._add(array, missing)
            except DataError as error:
                self.unusable = error.what
            except pa.ArrowInvalid:  # bytes that are not text
                self.unusable = "bytes that are not UTF-8 text"

    def _add(self, array: pa.Array, missing: Missing) -> None:
        null = pa.types.is_null(array.type)
        if self.is_list != _is_list(array.type) and not null:
            raise DataError(f"{self.type} in some files, {array.type} in others")
        if self.is_list and not null:
            lengths = pc.list_value_length(array)
            lengths = lengths.filter(pc.greater(lengths, 0))
            self.missing += len(array) - len(lengths)
            if len(lengths):
                shortest, longest = pc.min_max(lengths).values()
                self.shortest = min(self.shortest, shortest.as_py())
                self.longest = max(self.longest, longest.as_py())
            array = flat(pc.list_flatten(array))
        elif self.is_list:
            self.missing += len(array)
            return
        if pa.types.is_nested(array.type):
            raise DataError("its values are structs, which cannot be features")
        ids = hash_ids(array, 0, missing.ids)
        there = ids != MISSING_ID
        count = int(np.count_nonzero(there))
        self.values += count
        if not self.is_list:
            self.missing += len(array) - count
        self.distinct.add(ids[there])
        if count:
            self._add_numbers(array, missing)

    def _add_numbers(self, array: pa.Array, missing: Missing) -> None:
        if self.texts > MOST_TEXTS and len(self.odd) > MOST_ODD:
            return
        try:
            values = to_floats(array, missing.texts)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # no conversion to numbers
            if not is_text(array.type):
                self.texts += len(array)
                self.odd.update(map(str, range(MOST_ODD + 1)))
                return
            values = self._numbers_of(array.cast(pa.string()), missing)
        values = values[~np.isnan(values)]
        finite = values[np.isfinite(values)]
        self.infinite += len(values) - len(finite)
        if len(finite):
            self.fractions += int(np.count_nonzero(finite != np.floor(finite)))
            self.ascending = self.ascending and bool(finite[0] > self.high and (np.diff(finite) > 0).all())
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))

    def _numbers_of(self, text: pa.Array, missing: Missing) -> Any:
        """Return the numbers among texts, and count the other texts."""
        text = text.drop_null()
        right = pc.or_(pc.match_substring_regex(text, _NUMBER), pc.is_in(text, missing.texts))
        wrong = text.filter(pc.invert(right))
        self.texts += len(wrong)
        if len(self.odd) <= MOST_ODD:
            self.odd.update(pc.unique(wrong).to_pylist()[: MOST_ODD + 1])
        return to_floats(text.filter(right), missing.texts)


@dataclass(slots=True)
class Profile:
    """The columns by name, a sample of the rows with their numbers, and the label's values with their counts.

    `complete`: all rows were read. `label` is empty without a label, or if it has more than
    `LABEL_VALUES` unique values.
    """

    columns: dict[str, Column]
    sample: pa.Table
    numbers: Numbers
    rows: int
    complete: bool
    label: Counter[str]


def profile(
    source: Source,
    label: str | None,
    *,
    drop: Collection[str] = (),
    most: int | None = None,
    missing: tuple[str, ...] = MISSING,
    progress: Callable[[int], None] = lambda _: None,
) -> Profile:
    """Read all rows of a source, or the first `most`, once and in bounded memory, without columns to `drop`.

    `progress` is called with the number of rows read so far. Raises `DataError` for data without rows.
    """
    names = [name for name in source.names if name not in drop]
    columns = {name: Column(name) for name in names}
    missing_values = Missing(missing, 0)
    sample = RowSample(max(1000, min(SAMPLE_ROWS, SAMPLE_CELLS // max(1, len(names)))))
    counts: Counter[str] = Counter()
    many, rows, complete = False, 0, True
    for piece in source.scan(Scan(ids=names, numbers=()), None):
        table = piece.table
        if most is not None and rows + table.num_rows > most:
            table, complete = table.slice(0, most - rows), False
        for name in names:
            columns[name].add(as_array(table.column(name)), missing_values)
        sample.add(table)
        if label is not None and not many:
            counts.update(_counted(as_array(table.column(label))))
            many = len(counts) > LABEL_VALUES
        rows += table.num_rows
        progress(rows)
        if not complete:
            break
    if not rows:
        raise DataError("no rows: the data is empty", where=source.label, fix="give a file with rows")
    counts = Counter() if many else counts
    return Profile(columns, sample.table(), sample.numbers(), rows, complete, counts)


def flat(array: pa.Array) -> pa.Array:
    """Return an array with dictionaries and views converted to plain values."""
    return without_views(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _counted(array: pa.Array) -> dict[str, int]:
    """Return text of value -> number of occurrences, without missing values."""
    array = flat(array)
    if pa.types.is_nested(array.type):
        return {}
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    pairs = pc.value_counts(array.drop_null()).to_pylist()
    return {str(pair["values"]): pair["counts"] for pair in pairs if str(pair["values"]) not in MISSING}
