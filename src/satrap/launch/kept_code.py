"""The copies of the user's own code in a run folder: with them a run trains, resumes and scores."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from satrap import own_code
from satrap.config import Recipe
from satrap.config.source import KeyPath

FOLDER = "code"
"""Folder of the copies in a run folder; code of a second folder is in `code-2`."""

ORIGINS = f"{FOLDER}/origins.json"
"""Copy -> path and SHA-256 of the file that was copied."""


def keep(recipe: Recipe, run: Path) -> None:
    """Copy the files that a recipe names, and the modules beside them that they import, into a run folder.

    Raises:
        ConfigError: a file is missing or is no Python.
        OSError: a copy cannot be written.
    """
    folders: dict[Path, str] = {}
    origins: dict[str, dict[str, str]] = {}
    for main in _files(recipe):
        number = len(folders) + 1
        name = folders.setdefault(main.parent, FOLDER if number == 1 else f"{FOLDER}-{number}")
        for file in own_code.files(main):
            copy = f"{name}/{file.relative_to(main.parent)}"
            (run / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, run / copy)
            origins[copy] = {"path": str(file), "sha256": own_code.digest(run / copy)}
    if origins:
        (run / ORIGINS).write_text(json.dumps(origins, indent=2) + "\n", encoding="utf-8")


def check(recipe: Recipe) -> None:
    """Raise `ConfigError` if a file of the user's own code is missing or is no Python."""
    for path in recipe.own_code():
        for file in _files(recipe, path):
            recipe.located(path, own_code.files, file)


def _files(recipe: Recipe, *paths: KeyPath) -> Iterator[Path]:
    for path, reference in recipe.own_code().items():
        module, _ = own_code.parts(reference)
        if own_code.is_file(module) and path in (paths or (path,)):
            yield Path(module).absolute()


def discard(run: Path) -> None:
    """Remove the copies."""
    for copy in _origins(run):
        shutil.rmtree(run / copy.partition("/")[0], ignore_errors=True)


def adopt(recipe: Recipe, run: Path) -> Recipe:
    """Return a recipe that uses the copies instead of the files they were made of.

    Errors name these files, unless they have changed: of a run that fails early, no copy is left.
    """
    copies = {origin["path"]: str((run / copy).absolute()) for copy, origin in _origins(run).items()}
    for original, copy in copies.items():
        both = [Path(copy), Path(original)]
        if all(file.is_file() for file in both) and len({own_code.digest(file) for file in both}) == 1:
            own_code.is_copy(*both)
    references = dict(recipe.own_code())
    for path, reference in references.items():
        module, name = own_code.parts(reference)
        if own_code.is_file(module):
            file = str(Path(module).absolute())
            references[path] = f"{copies.get(file, file)}:{name}"
    return recipe.with_own_code(references)


def changed(run: Path) -> list[str]:
    """Return a line for each file that is no longer what was copied, or whose copy was changed."""
    lines = []
    for copy, origin in _origins(run).items():
        original, kept = Path(origin["path"]), run / copy
        if not kept.is_file() or own_code.digest(kept) != origin["sha256"]:
            lines.append(f"note: {kept} is not what the run began with")
        elif original.is_file() and own_code.digest(original) != origin["sha256"]:
            lines.append(f"note: {original} has changed since; the run uses its copy, {kept}")
    return lines


def _origins(run: Path) -> dict[str, dict[str, str]]:
    file = run / ORIGINS
    found: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found
