"""What an output folder is made of and how far it is: `manifest.json`."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from satrap.errors import ConfigError, DataError
from satrap.launch.folder import LOCK
from satrap.prepare.parts import TEMPORARY, Part

MANIFEST = "manifest.json"
VERSION = 1
"""Of the layout of prepared folders; another one is not continued."""


@dataclass(frozen=True, slots=True)
class View:
    """What a process sees of the files, to be compared on other machines; `mark` is a file in `folder`."""

    folder: Path
    mark: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]

    def check(self, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Raise an error if the folder, or what is to be written or read, is not the same here.

        Raises:
            ConfigError: the folder, or something that decides the bytes, is another one.
            DataError: an input is missing, or is another file.
        """
        if not (self.folder / self.mark).exists():
            raise ConfigError(
                "the output folder is not the same there",
                where=str(self.folder),
                why="parts are written there, and named here",
                fix="put --output on storage that all nodes have at the same place",
            )
        for name in {**self.inputs, **inputs}:
            if self.inputs.get(name) != inputs.get(name):
                raise DataError(
                    "the input is another file there, by size or time of change"
                    if name in inputs and name in self.inputs
                    else "the inputs are other files there",
                    where=name,
                    why="parts of different files would be mixed",
                    fix="put the inputs on storage that all nodes have at the same place",
                )
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise ConfigError(
                    f"other files would be written there: {key} is {settings.get(key)}, and here {value}",
                    fix="install the same versions on all nodes",
                )


@dataclass(slots=True)
class Manifest:
    """The state of an output folder; each change is on the disk when the method returns.

    Args:
        folder: the output folder.
        settings: all that decides what is written, but for the inputs; plain data.
        inputs: name -> size and version of each file that is read.
        parts: what is written.
    """

    folder: Path
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]
    parts: list[Part] = field(default_factory=list)

    def open(self) -> None:
        """Take up the folder where it was left, or begin it.

        Raises:
            DataError: an input has changed.
            ConfigError: the folder was made with other settings, or holds something else.
        """
        path = self.folder / MANIFEST
        self.tidy()
        if not path.exists():
            if any(entry.name != LOCK for entry in self.folder.iterdir()):
                raise ConfigError(
                    "the output folder holds something else",
                    where=str(self.folder),
                    fix="choose another --output",
                )
            self._save()
            return
        found = json.loads(path.read_text(encoding="utf-8"))
        again = f"remove {self.folder} to begin again, or choose another --output"
        self.check(found["inputs"], again)
        for key in {**found["settings"], **self.settings}:
            if found["settings"].get(key) != self.settings.get(key):
                raise ConfigError(
                    f"the output folder was begun with other settings: {key} differs",
                    where=str(self.folder),
                    why="its files would not fit together",
                    fix=again,
                )
        self.parts = [Part(**part) for part in found["parts"]]

    def tidy(self) -> None:
        """Remove the files of processes that have died, or were given up."""
        for left in self.folder.glob(f"*{TEMPORARY}"):
            left.unlink()

    def view(self) -> View:
        """Return what others must see, too; `tidy` ends it."""
        mark = f"view-{secrets.token_hex(8)}{TEMPORARY}"
        (self.folder / mark).touch()
        return View(self.folder.absolute(), mark, self.settings, self.inputs)

    def check(self, before: Mapping[str, Any], again: str) -> None:
        """Raise `DataError` if the inputs are not those in `before`; `again` says what to do."""
        for name in {**before, **self.inputs}:
            if before.get(name) != self.inputs.get(name):
                both = name in before and name in self.inputs
                raise DataError(
                    "the input has changed" if both else "the inputs are other files than before",
                    where=name,
                    why="parts of the old and of the new content would be mixed",
                    fix=again,
                )

    def done(self, key: str, file: int) -> dict[int, Part]:
        """Return number -> part of what is written of an input file."""
        return {part.number: part for part in self.parts if (part.key, part.file) == (key, file)}

    def add(self, temporary: Path, part: Part) -> None:
        """Give a written part its name."""
        path = self.folder / part.name
        path.parent.mkdir(exist_ok=True)
        os.replace(temporary, path)
        _sync_folder(path.parent)
        self.parts.append(part)
        self.parts.sort(key=lambda p: p.name)
        self._save()

    def _save(self) -> None:
        content = {
            "settings": self.settings,
            "inputs": self.inputs,
            "parts": [asdict(part) for part in self.parts],
        }
        partial = self.folder / f"{MANIFEST}{TEMPORARY}"
        with partial.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.folder / MANIFEST)
        _sync_folder(self.folder)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
