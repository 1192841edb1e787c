"""CSV and TSV files, plain or gzip'd, split into records here and parsed by pyarrow."""

from __future__ import annotations

import codecs
import csv
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from satrap.data.encode.encoder import MISSING, not_a_number
from satrap.data.formats.columns import to_floats
from satrap.data.formats.csv_records import NO_QUOTES, RecordBlock, blocks, copy_records
from satrap.data.formats.files import File
from satrap.data.formats.numerals import Numerals
from satrap.data.formats.text_stream import NAME_ENCODING, TextStream
from satrap.data.source import Cursor, Origin, Scan, ScanPiece, check_columns, permutation
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked

BLOCK_BYTES = 1 << 20
"""Bytes of text parsed at once."""
_HEADER_BYTES = 1 << 16
_told: set[str] = set()
"""First files of the sources already warned about: a source is opened for several parts and read often."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """Format of a CSV or TSV file.

    Args:
        separator: one character; default "," ("\\t" for format "tsv").
        columns: column names of a file without a header line; None (default): the first line holds them.
        comment: skip lines that start with this text; None (default): no comments.
        missing: values that mean "missing", default empty, "?", "NA", "N/A", "NaN", "nan", "null", "NULL".
            They apply to files and tables of every format, so that a value means the same in all of them.
        strip: drop blanks around values; default False.
        quote: the character around values that hold separators or line ends, default '"'; None or "": none.
        encoding: text encoding, default "utf-8".
        decimal: decimal mark, default "."; with "," a value `3,14` is 3.14 in every column, also as an id.
        thousands: mark between groups of three digits, such as "," in `1,234.5`; None (default): none.

    Raises:
        ConfigError: a separator or quote that is not one ASCII character, an unknown encoding, or an
            unsupported decimal or thousands mark.
    """

    separator: str | None = None
    columns: tuple[str, ...] | None = None
    comment: str | None = None
    missing: tuple[str, ...] = MISSING
    strip: bool = False
    quote: str | None = '"'
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None

    @property
    def numerals(self) -> Numerals:
        """Number format."""
        return Numerals(self.decimal, self.thousands)

    def __post_init__(self) -> None:
        if self.quote == "":
            object.__setattr__(self, "quote", None)
        for name in ("separator", "quote"):
            value = getattr(self, name)
            if value is not None and (len(value) != 1 or not value.isascii()):
                raise ConfigError(
                    f"csv: {name} must be one ASCII character, got {value!r}",
                    fix="rewrite the file, for example :: as tabs: sed 's/::/\\t/g' a.dat > a.tsv",
                )
        try:
            codecs.getincrementaldecoder(self.encoding)
            "a".encode(self.encoding)  # fails for bytes-to-bytes codecs such as base64
        except (LookupError, ValueError) as error:
            raise ConfigError(
                f"csv: {self.encoding!r} is not a known text encoding",
                fix="use utf-8, utf-16, latin-1 or cp1252",
            ) from error
        Numerals(self.decimal, self.thousands)
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))


@dataclass(slots=True)
class _Place:
    """A CSV cursor: file in scan order, byte and row in it, index of its first row, rows kept so far."""

    file: int = 0
    offset: int = -1
    row: int = 0
    base: int = -1
    kept: int = 0


class CsvSource:
    """CSV or TSV files. Rows are counted and selected before parsing, so skipped rows cost little.

    Shuffling permutes the files. Worker w of W takes every W-th kept row of the epoch, starting with the
    w-th; every worker reads all the bytes but parses only its own rows. Raises `DataError` if the first file
    is empty or unreadable.
    """

    def __init__(self, files: Sequence[File], options: CsvOptions) -> None:
        self.inputs, self._options = files, options
        self._marks = (
            ord(options.quote) if options.quote else -1,
            ord(options.separator or ","),
            np.frombuffer((options.comment or "").encode(), np.uint8),
        )
        self._headers: dict[int, tuple[list[str], int]] = {}
        self._counts: dict[int, int] = {}
        self._whole = files[0].name
        self.label, self.files = files[0].name, len(files)
        self.names: Sequence[str] = self._header(0)[0]

    def single(self, file: int) -> CsvSource:
        """Return the source of one of the files."""
        source = CsvSource([self.inputs[file]], self._options)
        source._whole = self._whole
        return source

    def rows_by_file(self) -> Sequence[int | None]:
        """Return None for each file: counting rows requires reading the files."""
        return [None] * self.files

    def offset(self, cursor: Cursor) -> int:
        """Return the number of bytes of a single file before a cursor."""
        return _Place(*cursor).offset

    def cursors(self, start: Cursor | None) -> Iterator[Cursor] | None:
        """Return the cursors of a single file's blocks; None if the text is not seekable."""
        with TextStream(self.inputs[0], self._options.encoding) as stream:
            if self.inputs[0].local is None or not stream.seekable:
                return None
        place = _Place(*start) if start else _Place()
        return (
            [0, block.offset, block.row, 0, block.row] for block in self._blocks(0, place.offset, place.row)
        )

    def columns(self) -> Iterator[tuple[str, pa.Schema]]:
        """Yield the name of each file and its columns, all of them text."""
        for index, file in enumerate(self.inputs):
            yield file.name, pa.schema([(name, pa.string()) for name in self._header(index)[0]])

    def num_rows(self, scan: Scan) -> int | None:
        """Return None: counting rows requires reading the files."""
        return None

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return the fraction of the bytes before the cursor; None for compressed files."""
        if any(file.name.endswith(".gz") for file in self.inputs):
            return None
        sizes = [self.inputs[i].size() for i in self._order(scan)]
        return min(1.0, (sum(sizes[: cursor[0]]) + max(0, cursor[1])) / max(1, sum(sizes)))

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[ScanPiece]:
        """Yield the worker's rows from the start or from a cursor, see `Source.scan`."""
        place = _Place(*cursor) if cursor else _Place()
        order = self._order(scan)
        while place.file < len(order):
            index = order[place.file]
            if place.base < 0:
                place.base = self._base(index, scan)
            yield from self._scan_file(index, scan, place)
            following = place.base + place.row if scan.order is None else -1
            place = _Place(file=place.file + 1, base=following, kept=place.kept)

    def _order(self, scan: Scan) -> list[int]:
        files = list(range(self.files))
        return files if scan.order is None else permutation(self.files, *scan.order).tolist()

    def _base(self, index: int, scan: Scan) -> int:
        """Return the index of a file's first row among all files, counting earlier files if necessary."""
        if scan.rows is None:
            return 0
        for earlier in range(index):
            if earlier not in self._counts:
                self._counts[earlier] = sum(len(block.starts) for block in self._blocks(earlier, -1, 0))
        return sum(self._counts[earlier] for earlier in range(index))

    def _header(self, index: int) -> tuple[list[str], int]:
        """Return (column names, byte offset after the header) of a file."""
        if index not in self._headers:
            file = self.inputs[index]
            with TextStream(file, self._options.encoding) as stream:
                if self._options.columns is not None:
                    self._headers[index] = list(self._options.columns), stream.offset
                    return self._headers[index]
                first = next(blocks(stream, *self._marks, row=0, size=_HEADER_BYTES), None)
            if first is None:
                fix = "give a file with a header line and at least one row"
                raise DataError("the file is empty", where=file.name, fix=fix)
            data, end = bytes(first.data), int(first.ends[0])
            after = data.find(b"\n", end) + 1 or len(data)
            self._headers[index] = self._names(data[first.starts[0] : end], file), first.offset + after
        return self._headers[index]

    def _names(self, line: bytes, file: File) -> list[str]:
        options = self._options
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise _bad_encoding(f"{file.name}, header line") from error
        names = text.split(chr(self._marks[1]))
        if options.quote:
            try:
                names = next(csv.reader([text], delimiter=chr(self._marks[1]), quotechar=options.quote))
            except csv.Error as error:
                raise DataError(
                    f"the header cannot be read: {error}",
                    where=file.name,
                    fix="correct the header; if lines end in \\r alone, run tr '\\r' '\\n'",
                ) from error
        return [name.strip() if options.strip else name for name in names]

    def _blocks(self, index: int, offset: int, row: int) -> Iterator[RecordBlock]:
        """Yield the blocks of a file from a byte offset; a negative offset means after the header."""
        start = self._header(index)[1]
        with TextStream(self.inputs[index], self._options.encoding) as stream:
            stream.skip_to(offset if offset >= 0 else start)
            yield from blocks(stream, *self._marks, row=row, size=BLOCK_BYTES)

    def _scan_file(self, index: int, scan: Scan, place: _Place) -> Iterator[ScanPiece]:
        file, names = self.inputs[index], self._header(index)[0]
        check_columns([*scan.names, *scan.raw_of(names)], names, file.name)
        parser = _Parser(self._options, self._marks, _distinct(names), file)
        for block in self._blocks(index, place.offset, place.row):
            place.offset, place.row = block.offset, block.row
            if block.inner and scan.worker == 0 and self._whole not in _told:
                _told.add(self._whole)
                _tell(block, file.name)
            rows = scan.kept(place.base + block.row, len(block.starts))
            mine = rows[(scan.worker - place.kept) % scan.workers :: scan.workers]
            if len(mine):
                yield parser.piece(block, mine, scan, list(astuple(place)))
            place.kept += len(rows)
            place.row = block.row + len(block.starts)


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses selected records of a file and explains errors."""

    options: CsvOptions
    marks: tuple[int, int, Any]
    names: list[str]
    file: File

    def piece(
        self, block: RecordBlock, chosen: npt.NDArray[np.int64], scan: Scan, cursor: Cursor
    ) -> ScanPiece:
        """Return the selected records as a piece."""
        origin = Origin(self.file.name, block.row + chosen)
        quote, separator, _ = self.marks
        if len(chosen) == block.lines and not self.options.strip:
            text = pa.py_buffer(block.data[block.starts[0] : block.ends[-1]])
        else:
            strip = (quote, separator) if self.options.strip else None
            text = pa.py_buffer(copy_records(block.data, block.starts[chosen], block.ends[chosen], strip))
        types = {name: pa.float64() for name in scan.numbers} | {name: pa.string() for name in scan.ids}
        table, raw = self._converted(text, types, origin), None
        if scan.raw is not None:
            types = dict.fromkeys(scan.raw_of(self.names), pa.string())
            raw = self._converted(text, types, origin, verbatim=True) if types else table.select([])
        return ScanPiece(table, origin, cursor, raw)

    def _parse(
        self, text: pa.Buffer, types: dict[str, Any], missing: Sequence[str], origin: Origin
    ) -> pa.Table:
        ragged: list[Any] = []

        def stop(row: Any) -> str:
            ragged.append(row)
            return "error"

        reading = pacsv.ReadOptions(use_threads=False, block_size=text.size + 1, column_names=self.names)
        parsing = pacsv.ParseOptions(
            delimiter=chr(self.marks[1]),
            quote_char=self.options.quote or False,
            newlines_in_values=True,
            invalid_row_handler=stop,
        )
        converting = pacsv.ConvertOptions(
            include_columns=list(types),
            column_types=types,
            null_values=list(missing),
            strings_can_be_null=bool(missing),
        )
        try:
            table = pacsv.read_csv(pa.BufferReader(text), reading, parsing, converting)
        except pa.ArrowInvalid:
            if not ragged:
                raise
            row = ragged[0]
            raise DataError(
                f"a row has {row.actual_columns} values, the header has {row.expected_columns}",
                where=f"{self.file.name}, row {int(origin.rows[row.number - 1]) + 1}: {row.text[:80]}",
                why="the values cannot be assigned to columns",
                fix="correct the row, or set data.separator, quote or comment (CsvOptions in Python)",
            ) from None
        if table.num_rows != len(origin.rows):
            raise DataError(
                f"{len(origin.rows)} lines were parsed as {table.num_rows} rows",
                where=f"{self.file.name}, rows {origin.rows[0] + 1} to {origin.rows[-1] + 1}",
                why="a carriage return inside a line ends a row in some programs and not in others",
                fix="use the same line ending throughout the file",
            )
        return table

    def _converted(
        self, text: pa.Buffer, types: dict[str, Any], origin: Origin, *, verbatim: bool = False
    ) -> pa.Table:
        """Parse text, including numbers such as "True" that pyarrow rejects; report a value that is invalid.

        `verbatim`: keep all text as it is.
        """
        numerals = Numerals() if verbatim else self.options.numerals
        missing = () if verbatim else self.options.missing
        error: Exception | None = None
        if numerals.plain:
            try:
                return self._parse(text, types, missing, origin)
            except pa.ArrowInvalid as first:
                error = first
        try:
            table = self._parse(text, dict.fromkeys(types, pa.binary()), missing, origin)
        except pa.ArrowInvalid as second:
            raise DataError(f"the text cannot be parsed: {error or second}", where=self.file.name) from second
        columns: dict[str, pa.Array] = {}  # collected, because each change of a table copies it
        for name, kind in types.items():
            column = table.column(name).combine_chunks()
            try:
                column = numerals.rewritten(column.cast(pa.string()))
                if kind == pa.float64():
                    column = pa.array(to_floats(column), from_pandas=True)
            except pa.ArrowInvalid:
                raise self._wrong(column, origin, name) from error
            columns[name] = column
        return pa.table(columns)

    def _wrong(self, column: pa.Array, origin: Origin, name: str) -> DataError:
        """Return the error for the first value that is not UTF-8 or not a number."""
        for row, value in enumerate(column.to_pylist()):
            try:
                if isinstance(value, bytes):
                    value.decode()
            except UnicodeDecodeError:
                return _bad_encoding(origin.at(row, name))
        return not_a_number(column.cast(pa.string()), origin, name)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names with repeated ones made unique; no caller reads the repeated columns."""
    first = {name: i for i, name in reversed(list(enumerate(names)))}
    return [name if first[name] == i else f"{name}\n{i}" for i, name in enumerate(names)]


def _tell(block: RecordBlock, file: str) -> None:
    """Warn that quoted values of a block span several lines: the quotes may be part of the text."""
    ends = zip(block.starts.tolist(), block.ends.tolist(), strict=True)
    first = next(i for i, (start, end) in enumerate(ends) if b"\n" in block.data[start:end].tobytes())
    warnings.warn(
        f"{file}, row {block.row + first + 1}: a quoted value spans several lines\n"
        f"  why it matters: {block.inner + len(block.starts):,} lines become {len(block.starts):,} rows\n"
        f"  what to do: nothing, if values contain line breaks; {NO_QUOTES}",
        RuntimeWarning,
        stacklevel=2,
    )


def _bad_encoding(where: str) -> DataError:
    return DataError("the text is not UTF-8", where=where, why="it cannot be decoded", fix=NAME_ENCODING)
