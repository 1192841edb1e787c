"""Inputs and progress of an output folder: `manifest.json`."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from satrap.errors import ConfigError, DataError
from satrap.launch.folder.run_folder import LOCK
from satrap.tools.prepare.parts import TEMPORARY, OutputPart

MANIFEST = "manifest.json"
VERSION = 1
"""Version of the folder layout; folders of another version cannot be resumed."""


@dataclass(frozen=True, slots=True)
class View:
    """A process's view of the files, to compare on other machines; `mark` is a file in `folder`."""

    folder: Path
    mark: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]

    def check(self, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Raise an error if this node sees another folder, other inputs or other settings.

        Raises:
            ConfigError: the folder, or a setting that affects the output, differs.
            DataError: an input is missing or differs.
        """
        if not (self.folder / self.mark).exists():
            raise ConfigError(
                "the node sees another output folder",
                where=str(self.folder),
                why="nodes write parts, and the main process renames them",
                fix="put --output on shared storage with the same path on all nodes",
            )
        for name in {**self.inputs, **inputs}:
            if self.inputs.get(name) != inputs.get(name):
                raise DataError(
                    "the node sees another input file, by size or modification time"
                    if name in inputs and name in self.inputs
                    else "the node sees other input files",
                    where=name,
                    why="parts of different files would be mixed",
                    fix="put the inputs on shared storage with the same path on all nodes",
                )
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise ConfigError(
                    f"the node would write other files: {key} is {settings.get(key)}, but {value} here",
                    fix="install the same versions on all nodes",
                )


@dataclass(slots=True)
class PrepareManifest:
    """State of an output folder; each change is on disk when the method returns.

    Args:
        folder: the output folder.
        settings: everything except the inputs that affects the output; plain data.
        inputs: name -> size and version of each input file.
        parts: written parts.
    """

    folder: Path
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]
    parts: list[OutputPart] = field(default_factory=list)

    def open(self) -> None:
        """Resume an existing folder, or start a new one.

        Raises:
            DataError: an input has changed.
            ConfigError: the folder was made with other settings, or has other content.
        """
        path = self.folder / MANIFEST
        self.tidy()
        if not path.exists():
            if any(entry.name != LOCK for entry in self.folder.iterdir()):
                raise ConfigError(
                    "the output folder is not empty, and satrap prepare did not write it",
                    where=str(self.folder),
                    fix="choose another --output",
                )
            self._save()
            return
        saved = json.loads(path.read_text(encoding="utf-8"))
        again = f"remove {self.folder} to start over, or choose another --output"
        self.check(saved["inputs"], again)
        for key in {**saved["settings"], **self.settings}:
            if saved["settings"].get(key) != self.settings.get(key):
                raise ConfigError(
                    f"the output folder was started with other settings: {key} differs",
                    where=str(self.folder),
                    why="files with different settings cannot be mixed",
                    fix=again,
                )
        self.parts = [OutputPart(**part) for part in saved["parts"]]

    def tidy(self) -> None:
        """Remove the temporary files of dead or abandoned processes."""
        for temporary in self.folder.glob(f"*{TEMPORARY}"):
            temporary.unlink()

    def view(self) -> View:
        """Return the view that other nodes must share; `tidy` invalidates it."""
        mark = f"view-{secrets.token_hex(8)}{TEMPORARY}"
        (self.folder / mark).touch()
        return View(self.folder.absolute(), mark, self.settings, self.inputs)

    def check(self, before: Mapping[str, Any], again: str) -> None:
        """Raise `DataError` if the inputs differ from `before`; `again` is the advice in the error."""
        for name in {**before, **self.inputs}:
            if before.get(name) != self.inputs.get(name):
                both = name in before and name in self.inputs
                raise DataError(
                    "the input has changed" if both else "the input files are not the same as before",
                    where=name,
                    why="parts of the old and the new content would be mixed",
                    fix=again,
                )

    def done(self, key: str, file: int) -> dict[int, OutputPart]:
        """Return number -> written part of an input file."""
        return {part.number: part for part in self.parts if (part.key, part.file) == (key, file)}

    def add(self, temporary: Path, part: OutputPart) -> None:
        """Rename a written part to its final name, and record it."""
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
