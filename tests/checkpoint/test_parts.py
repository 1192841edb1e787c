"""Row files, and items made in a thread ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint.files.direct_write import PIECE, PIECES
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import ahead, read_chunks, write_table, write_tables
from satrap.store import BUCKETS, RowChunk, bucket_of


def test_rows_are_written_as_they_are_made(tmp_path: Path) -> None:
    """Not collected first: memory holds two chunks and the pieces of the file, however many there are."""
    written: list[int] = []

    def chunks() -> Iterator[RowChunk]:
        for i in range(24):
            written.append((tmp_path / "rows").stat().st_size)
            ids = np.arange(i * 4096, (i + 1) * 4096, dtype=np.uint64)
            yield RowChunk("t", ids, np.zeros((4096, 64), np.float32), np.zeros((4096, 64), np.float32))

    entry = write_table(Storage(str(tmp_path)), "rows", "t", chunks())
    assert entry.rows == 24 * 4096
    assert all(size >= (i - 2) * 2 * 4096 * 64 * 4 - PIECES * PIECE for i, size in enumerate(written))


def test_one_more_is_made_while_the_last_is_used() -> None:
    made: list[int] = []
    second = threading.Event()

    def source() -> Iterator[int]:
        for i in range(3):
            made.append(i)
            if i == 1:
                second.set()
            yield i

    items = ahead(source())
    assert next(items) == 0
    assert second.wait(10)
    assert 2 not in made  # no more than one: memory stays bounded
    assert list(items) == [1, 2]


def test_an_error_reaches_the_consumer_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    items = ahead(source())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)


def test_the_thread_ends_with_the_iterator() -> None:
    before = threading.active_count()
    items = ahead(iter(range(100)))
    next(items)
    assert threading.active_count() == before + 1
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert list(ahead(iter(()))) == []


def test_each_run_of_buckets_has_a_file_of_its_own_rows(tmp_path: Path) -> None:
    """What a file's entry says of its buckets is true, so readers may pass over the others."""
    buckets, storage = [*range(3, 40), *range(60, BUCKETS // 2)], Storage(str(tmp_path))
    storage.make_folder("data")
    ids = np.arange(3000, dtype=np.uint64)
    ids = ids[np.argsort(bucket_of("t", ids), kind="stable")]
    held = ids[np.isin(bucket_of("t", ids), buckets)]
    whole = RowChunk("t", held, np.zeros((len(held), 2), np.float32), np.zeros((len(held), 2), np.float32))
    half = len(held) // 2
    chunks = [whole.pick(np.arange(len(held)) < half), whole.pick(np.arange(len(held)) >= half)]
    for runs in (buckets, buckets[:37]):
        own = np.isin(bucket_of("t", held), runs)
        given = chunks if runs is buckets else [whole.pick(own)]
        files = write_tables(storage, "data", given, buckets=runs)
        assert sorted(files) == ["table-000-0001.arrow", "table-000.arrow"][2 - len(files) :]
        for name, entry in files.items():
            start, stop = entry.buckets
            read = [chunk.ids for _, chunk in read_chunks(storage, Manifest("data", {}, {name: entry}))]
            expected = held[(bucket_of("t", held) >= start) & (bucket_of("t", held) < stop)]
            np.testing.assert_array_equal(np.concatenate(read), expected)
        assert [entry.buckets for _, entry in sorted(files.items(), reverse=True)] == (
            [[3, 40], [60, BUCKETS // 2]] if runs is buckets else [[3, 40]]
        )
