"""Text files as decompressed UTF-8 bytes, with one clear error for unreadable text."""

from __future__ import annotations

import codecs
import gzip
import zlib
from typing import Any

from satrap.data.formats.files import File, reading
from satrap.errors import DataError

NAME_ENCODING = (
    "set the file's encoding, such as cp1252 or utf-16: data.encoding in a recipe, "
    "satrap init --encoding, CsvOptions(encoding=...) in Python"
)
"""Advice for text in an unknown encoding."""

_STEP = 1 << 20
_GZIP = b"\x1f\x8b"


class TextStream:
    """Forward reader of a file, as UTF-8. Use as a context manager.

    A name that ends in .gz, or the gzip magic bytes, means gzip. Raises `DataError` for an unreadable file,
    broken gzip, or text that is not in the encoding.
    """

    def __init__(self, file: File, encoding: str) -> None:
        self.file, self._encoding = file, encoding
        self._handle = file.open()
        with reading(file.name):
            magic = self._handle.read(2)
            self._handle.seek(0)
        if magic and magic != _GZIP and file.name.endswith(".gz"):
            raise DataError(
                "the name of the file ends in .gz, but the file is not compressed with gzip",
                where=file.name,
                fix="rename the file without .gz, or copy or download it again",
            )
        self.compressed = magic == _GZIP or file.name.endswith(".gz")
        self._bytes: Any = gzip.GzipFile(fileobj=self._handle) if self.compressed else self._handle
        plain = codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")
        self._decoder = None if plain else codecs.getincrementaldecoder(encoding)()
        self._encoded = 0
        self._ahead = self._read(3)
        self.offset = 3 if self._ahead == codecs.BOM_UTF8 else 0
        self._ahead = b"" if self.offset else self._ahead

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.close()
        self._handle.close()

    @property
    def seekable(self) -> bool:
        """Whether the text can be read from the middle without reading it from the start."""
        return not self.compressed and self._decoder is None

    def read(self, size: int) -> bytes:
        """Return `size` bytes of UTF-8; fewer only at the end of the file."""
        parts, missing = [self._ahead], size - len(self._ahead)
        while missing > 0 and (part := self._read(missing)):
            parts.append(part)
            missing -= len(part)
        data = b"".join(parts)
        data, self._ahead = data[:size], data[size:]
        self.offset += len(data)
        return data

    def skip_to(self, offset: int) -> None:
        """Skip forward to a byte offset (of the decompressed UTF-8 text)."""
        if self.seekable:
            with reading(self.file.name):
                self._bytes.seek(offset)
            self._ahead, self.offset = b"", offset
        while self.offset < offset:
            if not self.read(min(_STEP, offset - self.offset)):
                raise DataError("the file is shorter than when the position was saved", where=self.file.name)

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._bytes.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"the gzip file is damaged or truncated: {error}",
                where=self.file.name,
                why="rows after the damage would be lost",
                fix="copy or download the file again",
            ) from error
        except OSError as error:
            raise DataError(f"cannot read the file: {error}", where=self.file.name) from error
        if self._decoder is None:
            return data
        held = len(self._decoder.getstate()[0])  # bytes of a partially read character
        try:
            text = self._decoder.decode(data, final=not data).encode()
        except UnicodeError as error:
            place = error.start if isinstance(error, UnicodeDecodeError) else 0
            raise DataError(
                f"the text is not valid {self._encoding}: {getattr(error, 'reason', error)}",
                where=f"{self.file.name}, byte {self._encoded - held + place + 1:,}",
                why="the text cannot be decoded",
                fix=NAME_ENCODING,
            ) from error
        self._encoded += len(data)
        return text if text or not data else self._read(len(data))
