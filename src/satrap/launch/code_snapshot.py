"""Copies of the user's code in a run folder, for training, resuming and scoring."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from satrap.config import Recipe
from satrap.config.source import KeyPath
from satrap.runtime import user_code

FOLDER = "code"
"""Folder of the copies in a run folder; code from a second source folder is in `code-2`."""

ORIGINS = f"{FOLDER}/origins.json"
"""Copy -> path and SHA-256 of the original file."""


def keep(recipe: Recipe, run: Path) -> None:
    """Copy the code files of a recipe, and the modules they import from the same folder, into a run folder.

    Raises:
        ConfigError: a file is missing or is not Python.
        OSError: a copy cannot be written.
    """
    folders: dict[Path, str] = {}
    origins: dict[str, dict[str, str]] = {}
    for main in _files(recipe):
        number = len(folders) + 1
        name = folders.setdefault(main.parent, FOLDER if number == 1 else f"{FOLDER}-{number}")
        for file in user_code.files(main):
            copy = f"{name}/{file.relative_to(main.parent)}"
            (run / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, run / copy)
            origins[copy] = {"path": str(file), "sha256": user_code.digest(run / copy)}
    if origins:
        (run / ORIGINS).write_text(json.dumps(origins, indent=2) + "\n", encoding="utf-8")


def check(recipe: Recipe) -> None:
    """Raise `ConfigError` if a file of the user's code is missing or is not Python."""
    for path in recipe.own_code():
        for file in _files(recipe, path):
            recipe.located(path, user_code.files, file)


def _files(recipe: Recipe, *paths: KeyPath) -> Iterator[Path]:
    for path, reference in recipe.own_code().items():
        module, _ = user_code.parts(reference)
        if user_code.is_file(module) and path in (paths or (path,)):
            yield Path(module).absolute()


def discard(run: Path) -> None:
    """Remove the copies."""
    for copy in _origins(run):
        shutil.rmtree(run / copy.partition("/")[0], ignore_errors=True)


def adopt(recipe: Recipe, run: Path) -> Recipe:
    """Return a recipe that uses the copies instead of the original files.

    Errors name unchanged original files, because a run that fails early leaves no copy.
    """
    copies = {origin["path"]: str((run / copy).absolute()) for copy, origin in _origins(run).items()}
    for original, copy in copies.items():
        both = [Path(copy), Path(original)]
        if all(file.is_file() for file in both) and len({user_code.digest(file) for file in both}) == 1:
            user_code.is_copy(*both)
    references = dict(recipe.own_code())
    for path, reference in references.items():
        module, name = user_code.parts(reference)
        if user_code.is_file(module):
            file = str(Path(module).absolute())
            references[path] = f"{copies.get(file, file)}:{name}"
    return recipe.with_own_code(references)


def changed(run: Path) -> list[str]:
    """Return a line for each changed original file or changed copy."""
    lines = []
    for copy, origin in _origins(run).items():
        original, ours = Path(origin["path"]), run / copy
        if not ours.is_file() or user_code.digest(ours) != origin["sha256"]:
            lines.append(f"note: {ours} has changed since the run began")
        elif original.is_file() and user_code.digest(original) != origin["sha256"]:
            lines.append(f"note: {original} has changed; the run uses its copy {ours}")
    return lines


def _origins(run: Path) -> dict[str, dict[str, str]]:
    file = run / ORIGINS
    origins: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return origins
