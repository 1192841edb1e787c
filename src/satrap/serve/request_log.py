"""Logs answers with the input values of their requests, for later training."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from satrap.data.formats.columns import as_array
from satrap.errors import DataError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.scorer import ScoredRequest

SECONDS = 1.0
"""Time between two files."""

MOST_ITEMS = 200_000
"""Maximum number of items waiting to be written; further items are not logged, which bounds memory."""

ID, TIME, STEP = "satrap_id", "satrap_time", "satrap_step"
"""Additional columns of the log: REQUEST:ITEM, seconds since 1970, and the training step of the answer."""


@dataclass(slots=True)
class LogStatistics:
    """Counters of a `RequestLog`.

    Attributes:
        written: number of items written.
        lost: number of items not written, because too many were waiting or a file could not be written.
    """

    written: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    at: float
    request: ScoreRequest
    answer: ScoredRequest


class RequestLog:
    """A folder of Arrow files with one row for each scored item; `FolderLog` reads it as a stream.

    A row has the columns of the model as the client sent them, the predictions, and `satrap_id`,
    `satrap_time` and `satrap_step`. Each server writes to a separate subfolder. A separate thread writes, so
    answers do not wait.

    Args:
        url: folder or fsspec URL.
        share: share of the requests to log, 0 to 1, chosen at random.
        notice: called with a line when a file cannot be written, and not again until a write succeeds.

    Attributes:
        statistics: counters, which any thread may read.
    """

    def __init__(self, url: str, *, share: float = 1.0, notice: Callable[[str], object] = print) -> None:
        self.statistics = LogStatistics()
        self._url, self._share, self._notice = url, share, notice
        self._system, path = fsspec.core.url_to_fs(url)
        self._folder = f"{path.rstrip('/')}/{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._waiting: deque[_Entry] = deque()
        self._items = self._files = 0
        self._failing = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="satrap-request-log", daemon=True)

    def __enter__(self) -> RequestLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the waiting answers and stop."""
        self._ending.set()
        self._thread.join()

    def add(self, request: ScoreRequest, answer: ScoredRequest, name: str = "") -> str:
        """Log an answer, and return the name of the request in the log; empty if the answer is not logged.

        Args:
            request: the request.
            answer: its answer.
            name: the client's name for the request, default a random name.
        """
        if self._share < 1 and random.random() >= self._share:
            return ""
        if self._items + request.size > MOST_ITEMS:
            self.statistics.lost += request.size
            return ""
        name = name or secrets.token_hex(8)
        self._items += request.size
        self._waiting.append(_Entry(name, time.time(), request, answer))
        return name

    def _run(self) -> None:
        while not self._ending.wait(SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        """Write the waiting answers, one file for each combination of types."""
        entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for model in {id(entry.answer.model): entry.answer.model for entry in entries}.values():
            answered = [entry for entry in entries if entry.answer.model is model]
            groups: dict[pa.Schema, list[pa.Table]] = {}
            for table in _tables(answered, model.columns, model.outputs):
                groups.setdefault(table.schema, []).append(table)
            for schema, tables in groups.items():
                self._write_file(schema, tables)
        self._items -= sum(entry.request.size for entry in entries)

    def _write_file(self, schema: pa.Schema, tables: Sequence[pa.Table]) -> None:
        rows = sum(table.num_rows for table in tables)
        name = f"{time.time_ns() // 1_000_000:013d}-{self._files:06d}.arrow"
        self._files += 1
        local = isinstance(self._system, LocalFileSystem)  # other file systems show only complete files
        path = f"{self._folder}/{'.' * local}{name}"
        try:
            self._system.makedirs(self._folder, exist_ok=True)
            with self._system.open(path, "wb") as file, _writer(file, schema) as writer:
                for table in tables:
                    writer.write_table(table)
            if local:
                os.rename(path, f"{self._folder}/{name}")
        except OSError as error:
            self.statistics.lost += rows
            if not self._failing:
                self._notice(
                    f"warning: the request log has gaps, because {self._url} cannot be written: {error}"
                )
            self._failing = True
        else:
            self.statistics.written += rows
            self._failing = False


def _writer(file: Any, schema: pa.Schema) -> Any:
    return pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))


def _tables(entries: Sequence[_Entry], columns: Sequence[str], outputs: Sequence[str]) -> list[pa.Table]:
    """Return the rows of one model's requests: in one table, or one table each if their types differ."""
    try:
        return [_table(entries, columns, outputs)]
    except (DataError, pa.ArrowException):
        return [_table([entry], columns, outputs) for entry in entries]


def _table(entries: Sequence[_Entry], columns: Sequence[str], outputs: Sequence[str]) -> pa.Table:
    arrays = {name: _column(name, entries) for name in columns}
    sizes = [entry.request.size for entry in entries]
    for i, output in enumerate(outputs):
        arrays[output] = pa.concat_arrays([pa.array(entry.answer.scores[:, i]) for entry in entries])
    arrays[ID] = pa.array(
        [f"{e.name}:{row}" for e, size in zip(entries, sizes, strict=True) for row in range(size)]
    )
    for name, values in ((TIME, [e.at for e in entries]), (STEP, [e.answer.step for e in entries])):
        kind = pa.float64() if name == TIME else pa.int64()
        arrays[name] = pa.array([v for v, n in zip(values, sizes, strict=True) for _ in range(n)], kind)
    return pa.table(arrays)


def _column(name: str, entries: Sequence[_Entry]) -> pa.Array:
    values: list[Any] = []
    for entry in entries:
        request = entry.request
        if name in request.context:
            values += [request.context[name]] * request.size
        else:
            column = request.items[name]
            if isinstance(column, pa.Array):
                values += column.to_pylist()
            else:
                values += column if isinstance(column, list) else column.tolist()
    return as_array(values)
