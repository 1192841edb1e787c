"""File discovery and access: local paths, globs and fsspec URLs."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from satrap.errors import ConfigError, DataError, did_you_mean

FORMATS = {
    "csv": (".csv", ".data", ".test", ".txt"),
    "tsv": (".tsv", ".dat", ".tab"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
}
"""Format -> its file name suffixes."""


NULL_PART = "__HIVE_DEFAULT_PARTITION__"
"""Value of a folder `name=value` whose rows have no value."""


@dataclass(frozen=True, slots=True)
class File:
    """One file on an fsspec file system.

    Args:
        system: the file system.
        path: its path there.
        name: its path or URL in messages.
        partitions: names and values of the folders below the given path, such as `year=2024`.
    """

    system: Any
    path: str
    name: str
    partitions: tuple[tuple[str, str | None], ...] = ()

    @property
    def local(self) -> str | None:
        """Return the path if it is on this machine's disk."""
        return self.path if isinstance(self.system, LocalFileSystem) else None

    def open(self) -> Any:
        """Open for reading bytes; `DataError` if the file cannot be opened."""
        with reading(self.name):
            return self.system.open(self.path, "rb")

    def size(self) -> int:
        """Return the size in bytes."""
        with reading(self.name):
            return int(self.system.size(self.path) or 0)

    def version(self) -> str:
        """Return a text that changes with the file: its modification time, or its tag in an object store."""
        with reading(self.name):
            if self.local is not None:
                return str(os.stat(self.local).st_mtime_ns)
            about = self.system.info(self.path)
        tags = ("etag", "md5hash", "crc32c", "mtime", "last_modified", "lastmodified", "updated", "created")
        values = {key.lower().replace("-", ""): value for key, value in about.items()}
        return next((str(values[key]) for key in tags if values.get(key) is not None), "")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert file system errors to `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read the file: {error.strerror or error}",
            where=name,
            fix="check that the file exists and is readable",
        ) from error


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise `DataError` for a pipe, a device or a socket: reading from it could block forever."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # opening the file raises a better error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError("the path is a pipe or a device, not a file", where=str(path), fix="give a file")


def find_files(sources: Any) -> list[File]:
    """Return the files of a path (text or `PathLike`), glob, URL or list of them; each glob sorted by name.

    A folder with parts such as `year=2024/` stands for all data files below it.

    Raises `DataError` if nothing matches, `ConfigError` if a URL's file system is not installed, or a
    source is not a path.
    """
    several = isinstance(sources, Sequence) and not isinstance(sources, str)
    files: list[File] = []
    for source in list(sources) if several else [sources]:
        if not isinstance(source, str | os.PathLike):
            raise ConfigError(
                f"a data source of type {type(source).__name__} ({type(source).__module__}) is not supported",
                fix="give a path, glob or URL; or convert it to a pyarrow.Table, a data frame of pandas or "
                "polars, or a dict of columns",
            )
        files.extend(_expand(os.fspath(source)))
    if not files:
        raise DataError("the list of files is empty", fix="give at least one file")
    return files


def files_in(folder: str) -> Iterator[tuple[str, File]]:
    """Yield (path inside the folder, file) of each file in a folder and its subfolders, in arbitrary order.

    A folder that does not exist yields nothing. Raises `DataError` if the folder cannot be listed.
    """
    system, path = _system(folder)
    with reading(folder):
        system.invalidate_cache()  # discard earlier listings
        paths = system.find(path)
    for file_path in paths:
        inside = file_path[len(path) :].lstrip("/")
        yield inside, File(system, file_path, f"{folder.rstrip('/')}/{inside}")


def _expand(source: str) -> list[File]:
    system, path = _system(source)
    with reading(source):
        above = path.rstrip("/")
        if not any(c in path for c in "*?[") or system.exists(path):
            paths = _parts(system, above) if system.isdir(path) else [path]
        else:
            paths = sorted(p for p in system.glob(_literal(system, path)) if not system.isdir(p))
            above = re.split(r"[^/]*[*?[]", path, maxsplit=1)[0].rstrip("/")
        if system.isdir(path) and not paths:
            raise DataError(
                "the path is a folder, not a file", where=source, fix=f"give {source.rstrip('/')}/*.parquet"
            )
        if not paths or not system.exists(paths[0]):
            raise _not_found(system, path, source)
        for file_path in paths if isinstance(system, LocalFileSystem) else ():
            check_regular(file_path)
    shown: Callable[[str], str] = system.unstrip_protocol if "://" in source else str
    if shown is str and not os.path.isabs(source) and not source.startswith("~"):
        shown = os.path.relpath  # as given: a relative path stays relative
    return [File(system, path, shown(path), _partitions(path.removeprefix(above))) for path in paths]


def _parts(system: Any, folder: str) -> list[str]:
    """Return the data files below a folder whose parts are folders such as `year=2024`, sorted; else none."""
    inside = ((path, path.removeprefix(folder).strip("/").split("/")) for path in system.find(folder))
    return sorted(path for path, names in inside if "=" in names[0] and is_data(names[-1]) and len(names) > 1)


def is_data(name: str) -> bool:
    """Return whether a file name has the suffix of a format, and does not mark a hidden file."""
    suffixes = tuple(suffix for of_format in FORMATS.values() for suffix in of_format)
    return name[0] not in "._" and name.lower().removesuffix(".gz").endswith(suffixes)


def _partitions(inside: str) -> tuple[tuple[str, str | None], ...]:
    """Return (name, decoded value) of each folder `name=value` in a path; None for the null value."""
    folders = [unquote(folder) for folder in inside.split("/")[:-1]]
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    return tuple((name, None if value == NULL_PART else value) for name, _, value in pairs)


def _literal(system: Any, path: str) -> str:
    """Return a glob in which brackets in the names of existing folders are literal."""
    folders, _, name = path.rpartition("/")
    parts = folders.split("/")
    there = ["[" in part and system.isdir("/".join(parts[: i + 1])) for i, part in enumerate(parts)]
    escaped = [p.replace("[", "[[]") if is_literal else p for p, is_literal in zip(parts, there, strict=True)]
    return "/".join([*escaped, name])


def _system(source: str) -> tuple[Any, str]:
    try:
        system, path = fsspec.core.url_to_fs(os.path.expanduser(source))
    except ImportError as error:
        raise ConfigError(
            f"the file system of {source!r} is not installed: {error}",
            fix="install the package named in the message",
        ) from error
    except ValueError as error:
        raise ConfigError(f"{source!r} is not a path or a supported URL: {error}") from error
    return system, path


def _not_found(system: Any, path: str, source: str) -> DataError:
    what = "no file matches" if any(c in path for c in "*?[") else "the file does not exist"
    folder, _, name = path.rpartition("/")
    try:
        names = [p.rpartition("/")[2] for p in system.ls(folder, detail=False)]
    except OSError:
        names = []
    return DataError(
        what,
        where=source,
        fix=f"{did_you_mean(name, names)}check the path; relative paths start in the current folder",
    )


def guess_format(name: str) -> str:
    """Return the format of a file name's suffix; `ConfigError` if the suffix is unknown."""
    suffix = os.path.splitext(name.lower().removesuffix(".gz"))[1]
    for kind, suffixes in FORMATS.items():
        if suffix in suffixes:
            return kind
    raise ConfigError(
        f"the format of {name!r} cannot be inferred from its name",
        fix=f"set format to one of {', '.join(FORMATS)}",
    )
