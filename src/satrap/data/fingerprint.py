"""What tells whether rows are still the same: size, digest and time of a file, or a digest of a table."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from satrap.data.files import File, reading
from satrap.rpc.wire.frames import Buffer

BYTES = 256 << 20
"""Bytes that are read of all local files together, shared equally; a larger file is read in places."""
BLOCK = 16 << 10
"""Bytes of such a place; they are spread evenly over the file."""
LEAST_BLOCKS = 4
"""Places of a file at least, however many files there are."""
MOST = 10_000
"""Files that are told apart; more count as one."""
STRETCHES, STRETCH = 64, 1024
"""Of a larger table in memory: how many stretches of how many rows are looked at, spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What is known of a file, of a table in memory, or of all files.

    Args:
        name: for messages.
        bytes, rows: None where that is not known without reading it.
        version: of a file, see `File.version`.
        digest: of the content; empty if that was not read.
        whole: whether the digest is of the whole content, not of places in it.
    """

    name: str
    bytes: int | None = None
    rows: int | None = None
    version: str = ""
    digest: str = ""
    whole: bool = False


def of_files(files: Sequence[File], rows: Sequence[int | None]) -> list[Fingerprint]:
    """Return the fingerprints of files, whose rows are known or not; of those elsewhere no content is read.

    Raises `DataError` if a file cannot be read.
    """
    most = max(BYTES // len(files), LEAST_BLOCKS * BLOCK)
    found = [_of_file(file, count, most) for file, count in zip(files, rows, strict=True)]
    return found if len(found) <= MOST else [_together(found)]


def _of_file(file: File, rows: int | None, most: int) -> Fingerprint:
    size, digest = file.size(), ""
    if file.local is not None:
        with reading(file.name):
            digest = _digest(file.local, size, most)
    return Fingerprint(
        name=file.name, bytes=size, rows=rows, version=file.version(), digest=digest, whole=size <= most
    )


def _digest(path: str, size: int, most: int) -> str:
    with open(path, "rb") as file:
        if size <= most:
            return hashlib.file_digest(file, "sha256").hexdigest()
        found, last = hashlib.sha256(), most // BLOCK - 1
        for place in range(last + 1):
            file.seek((size - BLOCK) * place // last)
            found.update(file.read(BLOCK))
    return found.hexdigest()


def _together(files: Sequence[Fingerprint]) -> Fingerprint:
    each = "".join(f"{one.bytes} {one.digest}\n" for one in files)
    return Fingerprint(
        name=f"{len(files):,} files, the first {files[0].name}",
        bytes=sum(one.bytes or 0 for one in files),
        version=digest_of(one.version.encode() for one in files),
        digest=digest_of([each.encode()]),
        whole=all(one.digest and one.whole for one in files),
    )


def digest_of(parts: Iterable[Buffer]) -> str:
    """Return one digest of some parts of a content."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def stretches(rows: int) -> list[tuple[int, int]]:
    """Return (start, end) of the stretches of a table that are looked at: all rows if they are few."""
    if rows <= STRETCHES * STRETCH:
        return [(start, min(start + STRETCH, rows)) for start in range(0, rows, STRETCH)]
    starts = [(rows - STRETCH) * i // (STRETCHES - 1) for i in range(STRETCHES)]
    return [(start, start + STRETCH) for start in starts]


def difference(then: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> tuple[str, str] | None:
    """Return (name, what is different) of the first that has changed; None if none has, as far as is known.

    What counts is the content in each place of the list: files may have other names, folders and times.
    """
    pairs = list(zip(then, now, strict=False))
    first = next(((a, b) for a, b in pairs if _changed(a, b)), None)
    if first is None and len(then) == len(now):
        return None
    before, after = [one.name for one in then], [one.name for one in now]
    if not set(before) & set(after):  # they were moved
        before, after = ([os.path.basename(name) for name in names] for names in (before, after))
    gone, new = ([n for n in a if n not in b] for a, b in ((before, after), (after, before)))
    if gone:
        return gone[0], f"it is gone{f', and {new[0]} is new' if new else ''}"
    if new:
        return new[0], "it is new"
    if first is None or before[pairs.index(first)] != after[pairs.index(first)]:
        return after[0], f"the list has other files, or in another order: {len(now):,}, and had {len(then):,}"
    return first[1].name, _changed(*first)


def _changed(a: Fingerprint, b: Fingerprint) -> str:
    """Return how `b` differs from `a`; empty if it does not, as far as is known."""
    if None not in (a.rows, b.rows) and a.rows != b.rows:
        return f"it has {b.rows:,} rows, and had {a.rows:,}"
    if (a.bytes is None) != (b.bytes is None):
        return "one is a file, the other was in memory"
    if a.bytes != b.bytes:
        return f"it has {b.bytes:,} bytes, and had {a.bytes:,}"
    if a.digest and b.digest:
        return "" if a.digest == b.digest else "its content is another one"
    renamed = os.path.basename(a.name) != os.path.basename(b.name)
    return "another file is in its place" if renamed and a.version != b.version else ""


def unsure(then: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> list[str]:
    """Return the names of files with another time or tag of which not the whole content was compared."""
    return [
        b.name
        for a, b in zip(then, now, strict=False)
        if a.version != b.version and not (a.digest and b.digest and a.whole)
    ]
