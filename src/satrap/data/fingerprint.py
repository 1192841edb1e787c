"""Fingerprints that show whether rows have changed: a file's size, digest and time, or a table's digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from satrap.data.formats.files import File, reading
from satrap.rpc.wire.frames import Buffer

BYTES = 256 << 20
"""Bytes read of all local files together, shared equally; a larger file is sampled in blocks."""
BLOCK = 16 << 10
"""Bytes of such a block; blocks are spread evenly over the file."""
LEAST_BLOCKS = 4
"""Minimum blocks per file, whatever the number of files."""
MOST = 10_000
"""Most files that are fingerprinted one by one; more files are combined into one fingerprint."""
STRETCHES, STRETCH = 64, 1024
"""Number and rows of the evenly spread stretches sampled from a large table in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Fingerprint of a file, of a table in memory, or of all files.

    Args:
        name: for messages.
        bytes, rows: None if unknown before reading.
        version: of a file, see `File.version`.
        digest: of the content; empty if the content was not read.
        whole: whether the digest covers the whole content, not only blocks of it.
    """

    name: str
    bytes: int | None = None
    rows: int | None = None
    version: str = ""
    digest: str = ""
    whole: bool = False


def of_files(files: Sequence[File], rows: Sequence[int | None]) -> list[Fingerprint]:
    """Return the fingerprints of files, whose rows may be unknown; the content of remote files is not read.

    Raises `DataError` if a file cannot be read.
    """
    most = max(BYTES // len(files), LEAST_BLOCKS * BLOCK)
    fingerprints = [_of_file(file, count, most) for file, count in zip(files, rows, strict=True)]
    return fingerprints if len(fingerprints) <= MOST else [_together(fingerprints)]


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
        sha, last = hashlib.sha256(), most // BLOCK - 1
        for place in range(last + 1):
            file.seek((size - BLOCK) * place // last)
            sha.update(file.read(BLOCK))
    return sha.hexdigest()


def _together(files: Sequence[Fingerprint]) -> Fingerprint:
    each = "".join(f"{file.bytes} {file.digest}\n" for file in files)
    return Fingerprint(
        name=f"{len(files):,} files, the first {files[0].name}",
        bytes=sum(file.bytes or 0 for file in files),
        version=digest_of(file.version.encode() for file in files),
        digest=digest_of([each.encode()]),
        whole=all(file.digest and file.whole for file in files),
    )


def digest_of(parts: Iterable[Buffer]) -> str:
    """Return the digest of a content given in parts."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def stretches(rows: int) -> list[tuple[int, int]]:
    """Return (start, end) of the sampled stretches of a table; they cover a small table completely."""
    if rows <= STRETCHES * STRETCH:
        return [(start, min(start + STRETCH, rows)) for start in range(0, rows, STRETCH)]
    starts = [(rows - STRETCH) * i // (STRETCHES - 1) for i in range(STRETCHES)]
    return [(start, start + STRETCH) for start in starts]


def difference(then: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> tuple[str, str] | None:
    """Return (name, difference) of the first changed entry; None if no change is detected.

    Only the content at each place of the list counts: files may have other names, folders and times.
    """
    pairs = list(zip(then, now, strict=False))
    first = next(((a, b) for a, b in pairs if _changed(a, b)), None)
    if first is None and len(then) == len(now):
        return None
    before, after = [fingerprint.name for fingerprint in then], [fingerprint.name for fingerprint in now]
    if not set(before) & set(after):  # the files were moved
        before, after = ([os.path.basename(name) for name in names] for names in (before, after))
    gone, new = ([n for n in a if n not in b] for a, b in ((before, after), (after, before)))
    if gone:
        return gone[0], f"the file is missing{f', and {new[0]} is new' if new else ''}"
    if new:
        return new[0], "the file is new"
    if first is None or before[pairs.index(first)] != after[pairs.index(first)]:
        return after[0], f"the files or their order changed: {len(now):,} files now, {len(then):,} before"
    return first[1].name, _changed(*first)


def _changed(a: Fingerprint, b: Fingerprint) -> str:
    """Return how `b` differs from `a`; empty if no difference is detected."""
    if None not in (a.rows, b.rows) and a.rows != b.rows:
        return f"{b.rows:,} rows now, {a.rows:,} before"
    if (a.bytes is None) != (b.bytes is None):
        return "one is a file, the other a table in memory"
    if a.bytes != b.bytes:
        return f"{b.bytes:,} bytes now, {a.bytes:,} before"
    if a.digest and b.digest:
        return "" if a.digest == b.digest else "its content has changed"
    renamed = os.path.basename(a.name) != os.path.basename(b.name)
    return "another file has replaced it" if renamed and a.version != b.version else ""


def unsure(then: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> list[str]:
    """Return the names of files with a new time or tag whose whole content was not compared."""
    return [
        b.name
        for a, b in zip(then, now, strict=False)
        if a.version != b.version and not (a.digest and b.digest and a.whole)
    ]
