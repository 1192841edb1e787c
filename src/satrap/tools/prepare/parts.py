"""Parts of the data: ranges of an input file that become one file each, whatever the number of processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from satrap.data import Dataset
from satrap.data.encode.encoder import Encoder, Missing
from satrap.data.source import Cursor, FileSource
from satrap.tools.prepare.layout import OutputLayout

ROWS, GROUP_BYTES = 1 << 16, 32 << 20
"""Rows and bytes at which a row group ends; a process holds one row group in memory."""

TEMPORARY = ".part"
"""Suffix of files that are being written."""


@dataclass(frozen=True, slots=True)
class PartRun:
    """Parts that one process writes one after another.

    They belong to file number `file` of a key such as `train`, from part number `number` on. The rows run
    from `start` (None: the first) to before `stop` (None: the end of the file).
    """

    key: str
    file: int
    number: int
    start: Cursor | None
    stop: Cursor | None


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A written file: the rows of an input file from `start` to before `stop`.

    It has `rows` rows and `size` bytes, and covers `read` bytes of the input.
    """

    key: str
    file: int
    number: int
    start: Cursor | None
    stop: Cursor | None
    rows: int
    read: int
    size: int

    @property
    def name(self) -> str:
        """Path in the output folder; names sort in row order."""
        return f"{self.key}/{self.file:05}-{self.number:05}.parquet"


def runs(
    source: FileSource, key: str, file: int, done: Mapping[int, OutputPart], limit: int, *, split: bool
) -> Iterator[PartRun]:
    """Yield the remaining runs of one input file.

    A part ends at the first piece that starts `limit` bytes or more after the part's start, or at the end.

    Args:
        source: the file.
        key: such as "train".
        file: its number among the key's files.
        done: number -> written part.
        limit: size of a part in bytes.
        split: make one run per part, if part boundaries can be found without reading the rows.
    """
    number: int = 0
    start: Cursor | None = None
    while True:
        if number in done:
            number, start = number + 1, done[number].stop
            if start is None:
                return
            continue
        cursors = source.cursors(start) if split else None
        if cursors is None:
            later = min((n for n in done if n > number), default=None)
            yield PartRun(key, file, number, start, done[later].start if later else None)
            if later is None:
                return
            number, start = later, done[later].start
            continue
        begin = None
        for cursor in cursors:
            begin = source.offset(cursor) if begin is None else begin
            if source.offset(cursor) - begin >= limit:
                yield PartRun(key, file, number, start, cursor)
                number, start, begin = number + 1, cursor, source.offset(cursor)
                if number in done:
                    break
        else:
            yield PartRun(key, file, number, start, None)
            return


def after(run: PartRun, part: OutputPart) -> PartRun | None:
    """Return the rest of a run after one of its parts; None if nothing remains."""
    return None if part.stop == run.stop else replace(run, number=part.number + 1, start=part.stop)


class _Writer:
    """Writer of one part to a temporary file, in row groups that depend only on the tables."""

    def __init__(self, folder: Path, name: str) -> None:
        # Two processes or machines may write the same part, if one of them was presumed dead.
        self.path = folder / f"{name}.{secrets.token_hex(8)}{TEMPORARY}"
        self.rows = 0
        self._held: list[pa.Table] = []
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self.rows += table.num_rows
        full = sum(t.num_rows for t in self._held) >= ROWS
        if full or sum(t.nbytes for t in self._held) >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._held)
        self._held = []
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema, compression="zstd", compression_level=1)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def end(self) -> int:
        """Complete the file and flush it to disk; return its size in bytes."""
        self._flush()
        self._writer.close()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size


def write(
    dataset: Dataset, layout: OutputLayout, run: PartRun, limit: int, folder: Path
) -> Iterator[tuple[Path, OutputPart]]:
    """Yield each part of a run once it is on disk, in a temporary file that the caller renames."""
    data = dataset.single(run.file)
    source, texts = data.source, Missing(data.settings.missing, data.schema.salt).texts
    assert isinstance(source, FileSource)
    encoder = Encoder(data.schema, missing=data.settings.missing)
    number, start, begin = run.number, run.start, 0
    writer: _Writer | None = None

    def part(stop: Cursor | None) -> tuple[Path, OutputPart]:
        assert writer is not None
        size, end = writer.end(), source.offset(stop) if stop else max(begin, source.inputs[0].size())
        return writer.path, OutputPart(run.key, run.file, number, start, stop, writer.rows, end - begin, size)

    for piece in data.pieces(run.start):
        if run.stop is not None and piece.cursor >= run.stop:
            break
        offset = source.offset(piece.cursor)
        if writer is not None and offset - begin >= limit:
            yield part(piece.cursor)
            number, start, writer = number + 1, piece.cursor, None
        if writer is None:
            writer, begin = _Writer(folder, f"{run.key}-{run.file}-{number}"), offset
        writer.add(layout.table(piece, encoder, texts))
    if writer is not None:
        yield part(run.stop)
