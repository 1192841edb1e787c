"""Disks that fail on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from satrap.checkpoint.files import storage
from satrap.checkpoint.files.disk import LocalDisk


class PowerCutError(Exception):
    """The power is gone: not an error of the file system, so that nobody cleans up after it."""


class PowerLossDisk(LocalDisk):
    """A local disk whose power fails at call k; knows what is certain to survive.

    POSIX promises: content after fsync of the file, names after fsync of the folder. Everything else may or
    may not be there afterwards. `states` yields the extremes: nothing that was not made durable; all names
    but none of the content that was not; and of the names those of files, but of new folders none.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.calls = at, 0
        self.content: dict[str, bytes] = {}  # durable content of a file object, by path it was created at
        self.live: dict[str, str | None] = {}  # name now -> key of its content; None: a folder
        self.durable: dict[str, str | None] = {}  # the same, as of the last fsync of its folder
        self._open: dict[int, str] = {}
        self._written: dict[str, bytes] = {}
        self._number = 0

    def adopt(self, root: Path) -> None:
        """Take what is there as durable."""
        for path in sorted(root.rglob("*")):
            key = None if path.is_dir() else str(path) + "#0"
            self.live[str(path)] = self.durable[str(path)] = key
            if key is not None:
                self.content[key] = path.read_bytes()

    def _call(self) -> None:
        self.calls += 1
        if self.at is not None and self.calls >= self.at:
            raise PowerCutError

    def create(self, path: str) -> Any:
        self._call()
        self._number += 1
        key = f"{path}#{self._number}"
        file = super().create(path)
        self._open[id(file)], self._written[key], self.live[path] = key, b"", key
        return file

    def write(self, file: Any, data: memoryview) -> None:
        self._call()
        self._written[self._open[id(file)]] += bytes(data)
        super().write(file, data)

    def sync(self, file: Any) -> None:
        self._call()
        key = self._open[id(file)]
        self.content[key] = self._written[key]

    def sync_folder(self, path: str) -> None:
        self._call()
        inside = {p for p in (self.live.keys() | self.durable.keys()) if os.path.dirname(p) == path}
        for name in inside:
            if name in self.live:
                self.durable[name] = self.live[name]
            else:
                self.durable.pop(name, None)

    def make_folder(self, path: str) -> None:
        if not os.path.isdir(path):
            above = os.path.dirname(path)
            if not os.path.isdir(above):
                self.make_folder(above)
                self.sync_folder(os.path.dirname(above))
            self._call()
            os.mkdir(path)
            self.live[path] = None

    def link(self, source: str, target: str) -> None:
        self._call()
        os.link(source, target)
        self.live[target] = self.live[source]

    def replace(self, source: str, target: str) -> None:
        self._call()
        os.replace(source, target)
        self.live[target] = self.live.pop(source)

    def remove(self, path: str) -> None:
        self._call()
        super().remove(path)
        for name in [n for n in self.live if n == path or n.startswith(path + "/")]:
            del self.live[name]

    def states(self) -> Iterator[dict[str, bytes | None]]:
        """Yield name -> content (None: a folder) of what may be found afterwards, each once."""
        files = {name: key for name, key in self.live.items() if key is not None}
        seen = list[dict[str, bytes | None]]()
        for names in (
            self.durable,
            {**self.durable, **self.live},
            {**self.durable, **files},
            self.live,
        ):
            state = self._reachable(names)
            if state not in seen:
                seen.append(state)
                yield state

    def _reachable(self, names: dict[str, str | None]) -> dict[str, bytes | None]:
        return {n: None if key is None else self.content.get(key, b"") for n, key in names.items()}


def rebuild(state: dict[str, bytes | None], old: Path, new: Path) -> Path:
    """Make what was found after the power cut, at another place."""
    folders = {name for name, content in state.items() if content is None} | {str(old)}
    new.mkdir(parents=True)
    for name, content in sorted(state.items()):
        inside = Path(name).relative_to(old)
        if not {str(old / parent) for parent in inside.parents} <= folders:
            continue  # its folder did not survive
        if content is None:
            (new / inside).mkdir(exist_ok=True)
        else:
            (new / inside).write_bytes(content)
    return new


@contextmanager
def local(disk: LocalDisk) -> Iterator[LocalDisk]:
    """Use this disk for all local paths."""
    with mock.patch.object(storage, "LocalDisk", return_value=disk):
        yield disk
