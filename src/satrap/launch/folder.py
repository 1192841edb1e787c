"""The run folder: recipe, metrics, history, curves and model of one run."""

import fcntl
import itertools
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from satrap.checkpoint import Series
from satrap.checkpoint.feed import is_feed, missing_texts
from satrap.checkpoint.manifest import MANIFEST
from satrap.checkpoint.series import FEED_FOLDER
from satrap.config import Recipe, load, to_yaml, without_data
from satrap.config.recipe import put
from satrap.errors import ConfigError, SatrapError
from satrap.launch import kept_code
from satrap.report.history import finite

RUNS = "runs"
"""Folder, in the current one, for runs that name no output folder."""

LIMITS = {"epochs": "training.epochs", "steps": "training.steps"}
"""Why a run ended -> the key that decided it, which may be raised when the run is resumed."""

OWN = (
    "recipe.yaml",
    "metrics.json",
    "metrics.jsonl",
    "sessions.jsonl",
    "tensorboard",
    "model",
    "checkpoints",
    FEED_FOLDER,
    "journals",
    "code",
    "identity.json",
    "targets.json",
    "shards.json",
    "workers.json",
    "requests",
)
"""What a run writes in its folder."""


class RunFolder:
    """One run on disk; `claim` makes a new folder, `open` checks that it holds a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.yaml"  # resolved; `satrap train` runs it again
        self.metrics_file = path / "metrics.json"  # last validation and test metrics, speed
        self.history_file = path / "metrics.jsonl"
        self.sessions_file = path / "sessions.jsonl"  # when, with what and where each session trained
        self.placement_file = path / "placement.json"  # what `cluster.placement: auto` has chosen
        self.identity_file = path / "identity.json"  # of a run with other processes, see `Identity`
        self.targets_file = path / "targets.json"  # during a run: where metrics are, see `Targets`
        self.shards_file = path / "shards.json"  # which shard has which rows, once rows have moved
        self.workers_file = path / "workers.json"  # how many workers there are, once another number was asked
        self.requests = path / "requests"  # while it trains: what users ask of its shards and workers
        self.code = path / "code"  # copies of the user's own code, see `kept_code`
        self.curves = path / "tensorboard"
        self.model = path / "model"  # network, tables and optimizer state
        self.checkpoints = path / "checkpoints"  # snapshots, unless the recipe names another place
        self.feed = path / FEED_FOLDER  # versions for servers, unless the recipe names another place
        self.journals = path / "journals"  # during a run: what each shard did since the newest snapshot
        self.published: str | None = None  # if all there is of the run is its feed: where that is

    def __str__(self) -> str:
        return self.published or str(self.path)

    @property
    def name(self) -> str:
        """What the run is called: as its folder is, also if only its feed is known."""
        path = self.path.resolve()
        return path.parent.name if path.name == FEED_FOLDER else path.name

    @classmethod
    def claim(cls, recipe: Recipe, output: str | Path | None = None, *, name: str = "") -> Self:
        """Make the folder of a new run and write its recipe there.

        Default is the first free `runs/<name>-<n>`, with the recipe's name if none is given. A folder that
        already holds a run, or cannot be made, is a ConfigError. The user's own code is copied there.
        """
        kept_code.check(recipe)
        if output is not None:
            folder = cls(Path(output))
            if not folder._try_claim(recipe):
                raise ConfigError(
                    "the output folder already holds a run",
                    where=str(output),
                    why="its results would be lost",
                    fix=folder.ways_on(),
                )
            return folder
        for number in itertools.count(1):
            folder = cls(Path(RUNS) / f"{name or recipe.name}-{number}")
            if folder._try_claim(recipe):
                return folder
        raise AssertionError("unreachable")

    def _try_claim(self, recipe: Recipe) -> bool:
        if any((self.path / name).exists() for name in OWN):
            return False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self.recipe_file.open("x", encoding="utf-8") as file:
                kept_code.keep(recipe, self.path)
                file.write(self._text(kept_code.adopt(recipe, self.path)))
        except FileExistsError as error:
            if self.path.is_dir():
                return False
            raise ConfigError("the output is a file, not a folder", where=str(self.path)) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write the output folder: {error.strerror}", where=str(self.path)
            ) from error
        return True

    def _text(self, recipe: Recipe) -> str:
        """Return a recipe as YAML; copies of own code are relative to the folder, so that it can be moved."""
        plain, here = recipe.resolved(), f"{self.path.absolute()}/"
        for path, reference in recipe.own_code().items():
            put(plain, path, reference.removeprefix(here))
        return to_yaml(plain)

    def write_recipe(self, recipe: Recipe) -> None:
        """Replace the recipe of the run."""
        write_whole(self.recipe_file, self._text(recipe))

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the folder of a run that has finished or left a snapshot; others are a ConfigError.

        A folder that `Trainer.save` wrote is one, too, and so is a feed, here or at a URL: their recipe
        consists of defaults.
        """
        folder = cls(Path(path))
        if "://" in str(path) or (folder.path.is_dir() and not folder.recipe_file.exists()):
            versions = Series(str(path))
            if (newest := versions.latest()) is not None and is_feed(versions.manifest(newest).settings):
                folder.published = versions.url
                return folder
        if (folder.path / MANIFEST).is_file() and not folder.recipe_file.exists():
            folder.model = folder.path
            return folder
        missing = [file for file in (folder.recipe_file, folder.model) if not file.exists()]
        if missing and not (missing == [folder.model] and folder._left_something()):
            raise ConfigError(
                f"not a run folder: it has no {missing[0].name}",
                where=str(path),
                fix="give the folder that satrap train printed at its end",
            )
        return folder

    def _left_something(self) -> bool:
        """Return whether there may be snapshots, or a feed."""
        keys = self.recipe().sections
        inside = self.checkpoints.exists() or self.feed.exists()
        return inside or keys.checkpoint.url is not None or keys.publish.url is not None

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """Read the recipe of the run, with overrides as `satrap.config.load` takes them."""
        if self.published is not None:
            series = Series(self.published)
            missing = missing_texts(series.manifest(series.latest() or 0).settings)
            known = [f"publish.url={self.published}", f"data.missing={json.dumps(missing)}"]
            return without_data(self.published, [*known, *overrides])
        if self.model == self.path:
            return without_data(str(self.path), overrides)
        return load(self.recipe_file, overrides)

    def knows_rows(self) -> bool:
        """Return whether its recipe names rows: that of a saved model or of a feed alone does not."""
        return self.published is None and self.model != self.path

    def snapshots(self, recipe: Recipe) -> str:
        """Return where the snapshots of its run are: the recipe's place, else in the folder."""
        return self.published or recipe.sections.checkpoint.url or str(self.checkpoints)

    def feed_place(self, recipe: Recipe) -> str:
        """Return where the feed of its run is: the recipe's place, else in the folder."""
        return recipe.sections.publish.url or str(self.feed)

    @property
    def stopped(self) -> str:
        """Why the run ended, as `metrics.json` says; empty if it does not say."""
        try:
            return str(json.loads(self.metrics_file.read_text(encoding="utf-8"))["stopped"])
        except (OSError, ValueError, KeyError):
            return ""

    def ways_on(self) -> str:
        """Return what can be done about the run in the folder, as advice."""
        name = shlex.quote(str(self.path))
        anew = f"for a new run, choose another --output DIR or remove {name}"
        key, going_on = LIMITS.get(self.stopped), f"satrap train --output {name} --resume"
        try:
            snapshots = Series(self.snapshots(self.recipe())).latest() is not None
        except SatrapError:
            snapshots = False
        if snapshots and key:
            return f"to train it on, raise {key}: {going_on} --set {key}=N; {anew}"
        if snapshots and self.stopped in ("", "stopped"):
            return f"to continue it: {going_on}; {anew}"
        if self.stopped == "patience":
            anew += ", with a larger training.patience"
        elif key:
            anew += f", with more {key}, and checkpoint.every_steps for one that can be trained on"
        return anew

    def write_metrics(self, values: Mapping[str, Any]) -> None:
        """Write `metrics.json`, whole or not at all."""
        write_whole(self.metrics_file, json.dumps(finite(values), indent=2) + "\n")

    def discard(self) -> None:
        """Remove what this run wrote, if nothing was measured or saved; other files stay."""
        _remove_if_empty(self.checkpoints)
        _remove_if_empty(self.feed)
        if self.history_file.exists() or self.model.exists() or self.checkpoints.exists():
            return
        self.remove()
        for folder in (self.path, self.path.parent):
            if folder == self.path or folder == Path(RUNS):
                _remove_if_empty(folder)

    def remove(self) -> None:
        """Remove what a run wrote; other files stay."""
        kept_code.discard(self.path)
        for own in (self.path / name for name in (*OWN, self.placement_file.name)):
            if own.is_dir():
                shutil.rmtree(own, ignore_errors=True)
            else:
                own.unlink(missing_ok=True)


LOCK = "lock"
"""File in an output folder that a process holds while it is at work there."""


@contextmanager
def locked(folder: Path, work: str) -> Iterator[None]:
    """Make an output folder, or take it up again; no other process may do `work` there, such as "search"."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write the output folder: {error.strerror}", where=str(folder)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"another {work} is at work in the output folder",
            where=str(folder),
            fix="wait for its end, or choose another --output",
        ) from error
    finally:
        os.close(lock)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
