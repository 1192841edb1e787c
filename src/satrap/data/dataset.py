"""`read`: files or arrays as a stream of batches, with exact shuffling, sharding and resuming."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.batch import Batch
from satrap.data.balance import balanced
from satrap.data.batch_rows import EpochRows, Mark, slice_rows
from satrap.data.encode.encoder import MISSING, ColumnChunk, Encoder, Missing, needed_columns
from satrap.data.encode.times import TimeRange
from satrap.data.fingerprint import Fingerprint, digest_of, of_files, stretches
from satrap.data.formats.arrays import SLICE_ROWS, MemorySource, to_table
from satrap.data.formats.columns import taken
from satrap.data.formats.csv import CsvOptions, CsvSource
from satrap.data.formats.files import FORMATS, File, find_files, guess_format
from satrap.data.formats.frames import frame_stream
from satrap.data.formats.join import Join, SideTable, check_joins
from satrap.data.formats.parquet import ArrowSource, ParquetSource
from satrap.data.shuffle_buffer import ShuffleBuffer
from satrap.data.source import (
    Cursor,
    FileSource,
    Origin,
    RowSplit,
    Scan,
    ScanPiece,
    Source,
    check_columns,
    permutation,
)
from satrap.errors import ConfigError, DataError, SatrapError
from satrap.rpc.wire.batches import pack_batch
from satrap.rpc.wire.frames import Buffer
from satrap.runtime.arguments import checked
from satrap.schema import Schema
from satrap.sequences import sequence_of

BUFFER_BYTES = 64 << 20
"""Encoded bytes in the shuffle buffer if `buffer_rows` is not set."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Read settings of a dataset, see `Dataset.with_options`."""

    batch_size: int = 4096
    shuffle: bool = False
    seed: int = 0
    buffer_rows: int | None = None
    balance: str | None = None
    rows: RowSplit | TimeRange | None = None
    worker: int = 0
    workers: int = 1
    missing: tuple[str, ...] = MISSING
    training: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "workers", "buffer_rows"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= 2**31):
                raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}")
        if not 0 <= self.worker < self.workers:
            raise ConfigError(f"worker must be in 0..{self.workers - 1}, got {self.worker}")


@checked()
class Dataset:
    """A stream of batches over files or arrays; made by `read`.

    ```python
    train = satrap.data.read("train/*.parquet", schema, batch_size=4096, shuffle=True)
    for batch in train.batches(epoch=3):
        ...
        saved = batch.position                      # plain JSON data
    for batch in train.batches(3, saved):           # continues with the next batch, byte for byte
        ...
    ```

    The object has no state, so any number of iterators may run at once. Without shuffle, rows come in file
    order. With shuffle, the files are permuted, then the row groups (Parquet), record batches (Arrow) or
    slices of 8192 rows (memory) inside each file, and then the rows of each run of `buffer_rows` rows. Every
    permutation is a function of (seed, epoch). An iterator holds at most two such buffers and the pieces
    being read. A position contains no rows: resuming reads the rows of the current buffer again.

    Args:
        source: source of the rows.
        schema: labels and features.
        settings: batch size, shuffle and worker shard.
        joins: side tables.

    Raises:
        DataError: a column is missing.
        ConfigError: invalid settings or transforms.
    """

    def __init__(
        self, source: Source, schema: Schema, settings: Settings, joins: Sequence[SideTable] = ()
    ) -> None:
        self._source, self.schema, self.settings, self._joins = source, schema, settings, tuple(joins)
        ids, numbers = needed_columns(schema)
        if isinstance(settings.rows, TimeRange):
            ids.append(settings.rows.column)
        self._names = list(dict.fromkeys([*ids, *numbers]))
        check_joins(self._joins, source.names)
        joined = [name for side in self._joins for name in side.columns]
        keys = [side.on for side in self._joins]
        check_columns([*self._names, *keys], [*source.names, *joined], source.label)
        self._ids = [name for name in dict.fromkeys([*ids, *keys]) if name not in joined]
        self._numbers = [name for name in numbers if name not in joined]

    @property
    def batch_size(self) -> int:
        """Samples per batch; the last batch of an epoch may be smaller."""
        return self.settings.batch_size

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the (first) file, without joined columns."""
        return tuple(self._source.names)

    @property
    def buffer_rows(self) -> int:
        """Size of the shuffle buffer in rows, a multiple of the batch size."""
        rows = self.settings.buffer_rows or max(1, BUFFER_BYTES // _row_bytes(self.schema))
        return max(1, round(rows / self.batch_size)) * self.batch_size

    def with_options(self, *, schema: Schema | None = None, **changes: Any) -> Dataset:
        """Return the same data with another schema or other settings.

        Args:
            schema: labels and features.
            **changes: `batch_size`, `shuffle` and `rows`, see `read`, or
                seed: of the shuffle, >= 0 or any 64-bit integer; default 0.
                buffer_rows: size of the shuffle buffer, in whole batches; default: rows that fit in 64 MiB.
                balance: name of a sequence; shuffled batches get about equal numbers of its events, within a
                    shuffle buffer; default none.
                worker: index of the shard to read, 0..workers-1; default 0.
                workers: number of disjoint shards that cover all rows; default 1.
                missing: texts that mean "missing", see `CsvOptions`.
                training: whether these are the training rows, whose `MeanLabel` comes from the other folds;
                    default False.

        Raises:
            ConfigError: an unknown or invalid setting.
        """
        unknown = [name for name in changes if name not in Settings.__slots__]
        if unknown:
            raise ConfigError(
                f"unknown setting {unknown[0]!r}", fix=f"use schema, {', '.join(Settings.__slots__)}"
            )
        settings = replace(self.settings, **changes)
        return Dataset(self._source, schema or self.schema, settings, self._joins)

    def num_rows(self) -> int | None:
        """Return this worker's rows per epoch, or None if unknown before reading (CSV, rows by time)."""
        if isinstance(self.settings.rows, TimeRange):
            return None
        return self._source.num_rows(self._scan(0))

    def progress(self, position: Mapping[str, Any], epoch: int = 0) -> float | None:
        """Return the fraction of an epoch before a batch's position, 0..1, or None if it is unknown.

        It is exact to the piece of data (or shuffle buffer) that contains the position.
        """
        if "cursor" not in position:
            raise ConfigError("the position does not come from a batch", fix="give Batch.position")
        cursor = position["cursor"]
        return 0.0 if cursor is None else self._source.progress(self._scan(epoch), cursor)

    def fingerprint(self) -> list[dict[str, Any]]:
        """Return the fingerprints that show whether the rows have changed, as plain data; see `Fingerprint`.

        There is one per file (or one for a table or a stream), then one per side table.
        """
        source = self._source
        if isinstance(source, FileSource):
            fingerprints = of_files(source.inputs, source.rows_by_file())
        else:
            fingerprints = [_of_rows(self)]
        return [
            asdict(fingerprint)
            for fingerprint in (*fingerprints, *(side.fingerprint for side in self._joins))
        ]

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"Dataset({self._source.label}, {len(self.schema.features)} features, "
            f"labels={list(self.schema.label_names)}, batch_size={s.batch_size}, shuffle={s.shuffle})"
        )

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, epoch: int = 0, position: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of one epoch, or the batches after `position`.

        Args:
            epoch: selects the shuffle order, >= 0; without shuffle all epochs are the same.
            position: `Batch.position` of an earlier iteration of the same epoch; None for the start.

        Raises:
            DataError: unusable data, or no rows at all.
            ConfigError: the position belongs to another dataset, epoch or setting.
        """
        here, encode = self._start(epoch, position), self._encoder()
        pieces = self._pieces(self._scan(epoch), here.cursor)
        rows = EpochRows(((encode(piece.table, piece.origin), piece.cursor) for piece in pieces), here)
        batches = self._shuffled(rows, epoch, here) if self.settings.shuffle else self._in_order(rows, epoch)
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty and position is None:
            self._refuse_empty()

    def schemas(self) -> Iterator[tuple[str, pa.Schema]]:
        """Yield the name of each file and its columns, without joined columns; CSV columns are text."""
        return self._source.columns()

    def tables_and_batches(self, columns: Sequence[str] | None = None) -> Iterator[tuple[pa.Table, Batch]]:
        """Yield (original columns, batch) in file order, to write predictions next to their input.

        CSV columns are text, exactly as in the file. `batch.position` is None.

        Args:
            columns: original columns to yield, if a file has them; default all.

        Raises:
            DataError: unusable data, or no rows at all. Raised before the first row if a file lacks a
                column of the schema, or has a required column twice.
        """
        schemas = dict(self.schemas())
        if columns is None:
            columns = list(dict.fromkeys(name for schema in schemas.values() for name in schema.names))
        for file, schema in schemas.items():
            there = set(schema.names).intersection(columns)
            check_columns([*self._ids, *self._numbers, *sorted(there)], schema.names, file)
        encode = self._encoder()
        empty = True
        for piece in self._pieces(self._scan(None, raw=columns)):
            batch = encode(piece.table, piece.origin)
            assert piece.raw is not None
            empty = False
            for start in range(0, batch.size, self.batch_size):
                stop = min(start + self.batch_size, batch.size)
                yield piece.raw.slice(start, stop - start), slice_rows(batch, start, stop)
        if empty:
            self._refuse_empty()

    def pieces(self, cursor: Cursor | None = None) -> Iterator[ScanPiece]:
        """Yield the columns of one epoch in file order, joined but not encoded, from a piece's cursor on."""
        return self._pieces(self._scan(None), cursor)

    def single(self, file: int) -> Dataset:
        """Return the dataset of a single file."""
        assert isinstance(self._source, FileSource)
        return Dataset(self._source.single(file), self.schema, self.settings, self._joins)

    @property
    def source(self) -> Source:
        """Source of the rows."""
        return self._source

    def _scan(self, epoch: int | None, *, raw: Sequence[str] | None = None) -> Scan:
        """Return the scan of an epoch; without an epoch, in file order."""
        s = self.settings
        return Scan(
            ids=self._ids,
            numbers=self._numbers,
            raw=raw,
            order=(s.seed, epoch) if s.shuffle and epoch is not None else None,
            rows=s.rows if isinstance(s.rows, RowSplit) else None,
            worker=s.worker,
            workers=s.workers,
        )

    def _encoder(self) -> Encoder:
        return Encoder(self.schema, missing=self.settings.missing, training=self.settings.training)

    def _pieces(self, scan: Scan, cursor: Cursor | None = None) -> Iterator[ScanPiece]:
        for piece in self._source.scan(scan, cursor):
            table = piece.table
            for side in self._joins:
                table = side.attach(table, self._names)
            piece = replace(piece, table=table)
            if isinstance(self.settings.rows, TimeRange):
                piece = self._in_time(piece, self.settings.rows)
            if piece.table.num_rows:
                yield piece

    def _in_time(self, piece: ScanPiece, rows: TimeRange) -> ScanPiece:
        """Return a piece with only the rows whose time is in a range."""
        missing = Missing(self.settings.missing, self.schema.salt)
        chunk = ColumnChunk(piece.table, piece.origin, self.schema.salt, missing, {})
        indices = np.flatnonzero(rows.keeps(chunk.seconds(rows.column)))
        origin = Origin(piece.origin.file, piece.origin.rows[indices])
        raw = None if piece.raw is None else taken(piece.raw, indices)
        return replace(piece, table=taken(piece.table, indices), origin=origin, raw=raw)

    def _in_order(self, rows: EpochRows, epoch: int) -> Iterator[Batch]:
        facts = self._facts(epoch)
        while (batch := rows.take(self.batch_size)) is not None:
            batch.position = {**facts, **asdict(rows.mark)}
            yield batch

    def _shuffled(self, rows: EpochRows, epoch: int, start: Mark) -> Iterator[Batch]:
        """Yield the batches of one buffer while the next buffer fills at the same pace."""
        number, first, size = start.buffer, start.batch, self.batch_size
        here, facts = start, self._facts(epoch)
        while parts := rows.take_parts(self.buffer_rows):
            current = ShuffleBuffer(parts, self.schema)
            order = permutation(current.size, self.settings.seed, epoch, number)
            if self.settings.balance is not None:
                order = balanced(order, _lengths(current.others, self.schema, self.settings.balance), size)
            following, count = rows.mark, -(-current.size // size)
            for i in range(first, count):
                rows.fill(min((i + 1 - first) * size, self.buffer_rows))
                # Resuming reads the buffer again from its start, except after its last batch.
                mark = replace(here, buffer=number, batch=i + 1)
                if i + 1 == count:
                    mark = replace(following, buffer=number + 1, batch=0)
                batch = current.take(order[i * size : (i + 1) * size])
                batch.position = {**facts, **asdict(mark)}
                yield batch
            number, first, here = number + 1, 0, following

    def _facts(self, epoch: int) -> dict[str, Any]:
        """Return the part of a position that is constant during an epoch.

        `check` is a checksum of all settings that determine the rows of each batch.
        """
        s = self.settings
        split: list[Any] = []
        if isinstance(s.rows, RowSplit):
            split = [s.rows.modulo, *s.rows.keep]
        elif s.rows is not None:
            split = [s.rows.column, *map(repr, s.rows.bounds)]
        facts = [s.batch_size, s.shuffle, s.worker, s.workers, split, self._source.files]
        if s.shuffle:
            facts += [s.seed, self.buffer_rows, *([] if s.balance is None else [s.balance])]
        return {"version": 1, "epoch": epoch, "check": zlib.crc32(json.dumps(facts).encode())}

    def _start(self, epoch: int, position: Mapping[str, Any] | None) -> Mark:
        if position is None:
            return Mark()
        facts = self._facts(epoch)
        if {key: position.get(key) for key in facts} != facts:
            raise ConfigError(
                "the saved position belongs to other data, another epoch or other settings",
                why="resuming from the position would skip or repeat rows",
                fix="restore the files, batch_size, rows, workers, shuffle, seed, buffer_rows and balance",
            )
        return Mark(**{name: position[name] for name in ("cursor", "skip", "buffer", "batch")})

    def _refuse_empty(self) -> None:
        """Raise if the source has no rows; an empty shard of a worker is not an error."""
        whole = replace(self._scan(None), worker=0, workers=1)
        if next(self._pieces(whole), None) is None:
            some = self.settings.rows is not None
            raise DataError(
                "no rows" + (" remain after the row split" if some else ": the data is empty"),
                where=self._source.label,
                fix="check the files" + (" and rows" if some else ""),
            )


def _of_rows(data: Dataset) -> Fingerprint:
    """Return the fingerprint of a table; of a stream, which is not read, its name."""
    if not isinstance(data.source, MemorySource):
        return Fingerprint(name=data.source.label)
    whole = data.with_options(rows=None, worker=0, workers=1)
    rows, digest = whole.num_rows() or 0, ""
    with suppress(SatrapError):  # reading the unusable row raises the error later
        digest = digest_of(_looked_at(whole, rows))
    places = stretches(rows)
    complete = sum(end - start for start, end in places) == rows
    return Fingerprint(name=whole.source.label, rows=rows, digest=digest, whole=complete)


def _looked_at(data: Dataset, rows: int) -> Iterator[Buffer]:
    """Yield the encoded rows of a table's stretches; encoding makes column types and chunks irrelevant."""
    encode, scan = data._encoder(), data._scan(None)
    for start, end in stretches(rows):
        piece = next(data._pieces(scan, list(divmod(start, SLICE_ROWS))))
        rows_there = Origin(piece.origin.file, piece.origin.rows[: end - start])
        yield from pack_batch(encode(piece.table.slice(0, end - start), rows_there), {})


def _lengths(batch: Batch, schema: Schema, sequence: str) -> npt.NDArray[np.int64]:
    """Return each row's number of events in a sequence; `ConfigError` if the schema lacks the sequence."""
    offsets = batch.ids[sequence_of(schema.sequences, sequence).ids[0]].offsets
    assert offsets is not None
    return np.diff(offsets)


def _row_bytes(schema: Schema) -> int:
    """Return the approximate size in bytes of an encoded row.

    A bag counts as 8 ids or its limit, whichever is less; a sequence as 8 events or its limit.
    """
    size = (
        4 * schema.numeric_width + 5 * len(schema.labels) + 4 * bool(schema.weight) + 8 * bool(schema.group)
    )
    for feature in schema.categorical.values():
        if feature.sequence is None:
            size += 8 + 8 * min(feature.max_values or 8, 8) if feature.multi else 8
    for group in schema.sequences.values():
        events = group.max_values or 8
        size += (8 + 8 * events) * len(group.ids) + (8 + 4 * events) * len(group.numbers)
    return size


@checked()
def read(
    source: Any,
    schema: Schema,
    *,
    batch_size: int = 4096,
    shuffle: bool = False,
    rows: RowSplit | TimeRange | None = None,
    join: Sequence[Join] = (),
    format: str | None = None,
    csv: CsvOptions | None = None,
) -> Dataset:
    """Return a dataset over files or arrays. It streams only the columns that the schema needs.

    `Dataset.with_options` sets how rows are shuffled and which shard a worker reads.

    Args:
        source: path, glob, fsspec URL or a list of them; a folder with parts such as `year=2024/`, whose
            names become columns; a dict of columns; a data frame of pandas or polars; a Hugging Face data
            set; a DuckDB relation or any other object with `__arrow_c_stream__`. Streams are read in their
            order.
        schema: labels and features; `Schema.without_labels` for data without label columns.
        batch_size: samples per batch, default 4096.
        shuffle: read in random order, a function of (seed, epoch); default False.
        rows: keep only some rows, by index or time. Rows are sharded over workers before a selection by time.
        join: side tables whose columns are added.
        format: "csv", "tsv", "parquet" or "arrow"; default: by the file name (".gz" may follow for text).
        csv: format of CSV files; its `missing` applies to every kind of source.

    Raises:
        DataError: a missing or unreadable file, a missing column.
        ConfigError: invalid settings or transforms.
    """
    missing = (csv or CsvOptions()).missing
    settings = Settings(batch_size=batch_size, shuffle=shuffle, rows=rows, missing=missing)
    joins = [SideTable(side, open_source(side.source, csv=side.csv)) for side in join]
    return Dataset(open_source(source, format=format, csv=csv), schema, settings, joins)


def open_source(source: Any, *, format: str | None = None, csv: CsvOptions | None = None) -> Source:
    """Return the source behind a path, glob, URL, list, dict, table or stream.

    Raises `DataError` if a file cannot be read, `ConfigError` for an unknown format or kind of source.
    """
    table = to_table(source)
    if table is not None:
        return MemorySource(*table)
    stream = frame_stream(source)
    if stream is not None:
        return stream
    return open_files(find_files(source), format=format, csv=csv)


def open_files(
    files: Sequence[File], *, format: str | None = None, csv: CsvOptions | None = None
) -> FileSource:
    """Return the source of at least one file; for arguments and errors see `open_source`."""
    kind = format or guess_format(files[0].name)
    for file in files if format is None else ():
        if (other := guess_format(file.name)) != kind:
            raise DataError(
                f"the files have two formats: {files[0].name} is {kind}, {file.name} is {other}",
                why="all files of a list are read in the same format",
                fix="give files of one format, or set format for all of them",
            )
    if kind not in FORMATS:
        raise ConfigError(f"format {kind!r} is unknown", fix=f"use one of {', '.join(FORMATS)}")
    if kind == "parquet":
        return ParquetSource(files)
    if kind == "arrow":
        return ArrowSource(files)
    options = csv or CsvOptions()
    if options.separator is None:
        options = replace(options, separator="\t" if kind == "tsv" else ",")
    return CsvSource(files, options)
