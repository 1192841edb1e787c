"""Files of one checkpoint folder, local or behind any fsspec URL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from satrap.errors import CheckpointError


class DigestWriter:
    """A binary file that counts and digests what is written to it.

    Args:
        raw: the file underneath.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.size, self._digest = raw, 0, hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        """Write bytes or a buffer; return how many bytes."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self.size += len(view)
        self.raw.write(view)
        return len(view)

    def flush(self) -> None:
        """Hand buffered bytes to the operating system."""
        self.raw.flush()

    @property
    def closed(self) -> bool:
        """True once the file underneath is closed."""
        return self.raw.closed

    def hexdigest(self) -> str:
        """Return the BLAKE2b digest (128 bit, hex) of everything written."""
        return self._digest.hexdigest()


class Storage:
    """A folder of files; names are relative, with "/".

    Args:
        url: local path or fsspec URL.
        options: passed to the file system.

    Raises:
        CheckpointError: the URL's protocol is unknown.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise CheckpointError(
                f"cannot use {url!r}: {error}", fix="give a path or an fsspec URL"
            ) from error
        self._local = isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def exists(self, name: str) -> bool:
        """Return True if the file is there."""
        return bool(self.fs.exists(self.path(name)))

    @contextmanager
    def writer(self, name: str) -> Iterator[DigestWriter]:
        """Open a new file for writing; on a local disk it is on the platter when the block ends."""
        path = self.path(name)
        self.fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        with self.fs.open(path, "wb") as raw:
            writer = DigestWriter(raw)
            yield writer
            if self._local:
                raw.flush()
                os.fsync(raw.fileno())

    def replace(self, name: str, data: bytes) -> None:
        """Put a whole file in one step: readers see the old or the new content, never a mix."""
        if not self._local:
            self.fs.pipe_file(self.path(name), data)
            return
        with self.writer(name + ".new") as writer:
            writer.write(data)
        os.replace(self.path(name + ".new"), self.path(name))
        self.sync_folder("")

    def sync_folder(self, name: str) -> None:
        """Make the entries of a local folder durable."""
        if self._local:
            descriptor = os.open(self.path(name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def open(self, name: str) -> Any:
        """Open a file for reading."""
        return self.fs.open(self.path(name), "rb")

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        return bytes(self.fs.cat_file(self.path(name)))

    def remove(self, name: str) -> None:
        """Remove a file or folder and what is in it."""
        self.fs.rm(self.path(name), recursive=True)

    def folders(self) -> list[str]:
        """Return the names of the folders directly below."""
        found = self.fs.ls(self.root, detail=True)
        return [item["name"].rstrip("/").rsplit("/", 1)[-1] for item in found if item["type"] == "directory"]
