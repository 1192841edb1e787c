"""The run folder: recipe, metrics, history, curves and model of one run."""

import fcntl
import itertools
import json
import math
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
from satrap.launch import code_snapshot
from satrap.report.history import finite
from satrap.runtime.formatting import html_table, metric_rows

RUNS = "runs"
"""Folder, below the current one, for runs without an output folder."""

LIMITS = {"epochs": "training.epochs", "steps": "training.steps"}
"""Reason for a run's end -> the limiting key, which may be raised on resume."""

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
"""Files and folders that a run writes in its folder."""


def no_run(path: str | Path, missing: str = "recipe.yaml") -> ConfigError:
    """Return the error for a folder of a run that does not exist, or lacks a file."""
    problem = f"{missing} is missing" if Path(path).exists() else "it does not exist"
    return ConfigError(
        f"not a run folder: {problem}",
        where=str(path),
        fix="give the folder that satrap train printed at its end",
    )


class RunFolder:
    """One run on disk; `claim` makes a new folder, `open` checks that it holds a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.yaml"  # resolved; can be trained again
        self.metrics_file = path / "metrics.json"  # last validation and test metrics, speed
        self.history_file = path / "metrics.jsonl"
        self.sessions_file = path / "sessions.jsonl"  # time, versions and machine of each session
        self.placement_file = path / "placement.json"  # placements that the run has chosen
        self.identity_file = path / "identity.json"  # for a run with several processes, see `Identity`
        self.targets_file = path / "targets.json"  # during a run: metrics endpoints, see `Targets`
        self.shards_file = path / "shards.json"  # shard map, after rows have moved
        self.workers_file = path / "workers.json"  # number of workers, after a request changed it
        self.requests = path / "requests"  # during training: users' requests
        self.code = path / "code"  # copies of the user's code, see `kept_code`
        self.curves = path / "tensorboard"
        self.model = path / "model"  # network, tables and optimizer state
        self.checkpoints = path / "checkpoints"  # snapshots, unless the recipe sets a place
        self.feed = path / FEED_FOLDER  # versions for servers, unless the recipe sets a place
        self.journals = path / "journals"  # during a run: updates of each shard since the newest snapshot
        self.published: str | None = None  # place of the feed, if the run has no other files

    def __str__(self) -> str:
        return self.published or str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self)!r}, stopped={self.stopped!r})"

    def _repr_html_(self) -> str:
        rows = [(part, *row) for part in ("validation", "test") for row in metric_rows(self.metrics_of(part))]
        return html_table(f"Run {self}: {self.stopped or 'not ended'}", rows)

    @property
    def name(self) -> str:
        """Name of the run: the name of its folder, also if only its feed is available."""
        path = self.path.resolve()
        return path.parent.name if path.name == FEED_FOLDER else path.name

    @classmethod
    def claim(cls, recipe: Recipe, output: str | Path | None = None, *, name: str = "") -> Self:
        """Make the folder of a new run and write its recipe there.

        Default is the first unused `runs/<name>-<n>`; `name` defaults to the recipe's name. A folder that
        already holds a run or cannot be made raises ConfigError. The user's code is copied into the folder.
        """
        code_snapshot.check(recipe)
        if output is not None:
            folder = cls(Path(output))
            if not folder._try_claim(recipe):
                raise ConfigError(
                    "the output folder already holds a run",
                    where=str(output),
                    why="the results of the existing run would be lost",
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
                code_snapshot.keep(recipe, self.path)
                file.write(self._text(code_snapshot.adopt(recipe, self.path)))
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
        """Return a recipe as YAML; paths of copied code are relative, so that the folder can be moved."""
        plain, here = recipe.resolved(), f"{self.path.absolute()}/"
        for path, reference in recipe.own_code().items():
            put(plain, path, reference.removeprefix(here))
        return to_yaml(plain)

    def write_recipe(self, recipe: Recipe) -> None:
        """Replace the recipe of the run."""
        write_whole(self.recipe_file, self._text(recipe))

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the folder of a run that has finished or left a snapshot; else raise ConfigError.

        A folder written by `Trainer.save` and a feed, local or at a URL, are also accepted; their recipe has
        default values.
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
            raise no_run(path, missing[0].name)
        return folder

    def _left_something(self) -> bool:
        """Return whether the run may have snapshots or a feed."""
        keys = self.recipe().sections
        inside = self.checkpoints.exists() or self.feed.exists()
        return inside or keys.checkpoint.url is not None or keys.publish.url is not None

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """Read the recipe of the run; for overrides see `satrap.config.load`."""
        if self.published is not None:
            series = Series(self.published)
            missing = missing_texts(series.manifest(series.latest() or 0).settings)
            settings = [f"publish.url={self.published}", f"data.missing={json.dumps(missing)}"]
            return without_data(self.published, [*settings, *overrides])
        if self.model == self.path:
            return without_data(str(self.path), overrides)
        return load(self.recipe_file, overrides)

    def knows_rows(self) -> bool:
        """Return whether its recipe has data; the recipe of a saved model or of a feed alone has none."""
        return self.published is None and self.model != self.path

    def snapshots(self, recipe: Recipe) -> str:
        """Return the place of the run's snapshots: the recipe's, else in the folder."""
        return self.published or recipe.sections.checkpoint.url or str(self.checkpoints)

    def feed_place(self, recipe: Recipe) -> str:
        """Return the place of the run's feed: the recipe's, else in the folder."""
        return recipe.sections.publish.url or str(self.feed)

    @property
    def metrics(self) -> dict[str, Any]:
        """Content of `metrics.json`; empty without a readable file."""
        try:
            metrics = json.loads(self.metrics_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return metrics if isinstance(metrics, dict) else {}

    def metrics_of(self, part: str) -> dict[str, float]:
        """Return the metrics of "validation" or "test" rows; NaN where the file has null."""
        values = self.metrics.get(part) or {}
        return {key: math.nan if value is None else float(value) for key, value in values.items()}

    @property
    def stopped(self) -> str:
        """The reason for the run's end in `metrics.json`; empty if unknown."""
        return str(self.metrics.get("stopped", ""))

    def ways_on(self) -> str:
        """Return advice on how to continue or replace the run in the folder."""
        name = shlex.quote(str(self.path))
        new_run = f"for a new run, choose another --output DIR or remove {name}"
        key, resume = LIMITS.get(self.stopped), f"satrap train --output {name} --resume"
        try:
            snapshots = Series(self.snapshots(self.recipe())).latest() is not None
        except SatrapError:
            snapshots = False
        if snapshots and key:
            return f"to train it further, raise {key}: {resume} --set {key}=N; {new_run}"
        if snapshots and self.stopped in ("", "stopped"):
            return f"to continue it: {resume}; {new_run}"
        if self.stopped == "patience":
            key = "training.patience"
        longer = f"; to train longer, raise {key}" if key else ""
        return f"to begin with its weights and rows: satrap train RECIPE --from {name}; {new_run}{longer}"

    def write_metrics(self, values: Mapping[str, Any]) -> None:
        """Write `metrics.json`, whole or not at all."""
        write_whole(self.metrics_file, json.dumps(finite(values), indent=2) + "\n")

    def discard(self) -> None:
        """Remove this run's files, if no metrics or model were saved; other files stay."""
        _remove_if_empty(self.checkpoints)
        _remove_if_empty(self.feed)
        if self.history_file.exists() or self.model.exists() or self.checkpoints.exists():
            return
        self.remove()
        for folder in (self.path, self.path.parent):
            if folder == self.path or folder == Path(RUNS):
                _remove_if_empty(folder)

    def remove(self) -> None:
        """Remove the files of a run; other files stay."""
        code_snapshot.discard(self.path)
        for path in (self.path / name for name in (*OWN, self.placement_file.name)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


LOCK = "lock"
"""File in an output folder that a process locks while it uses the folder."""


@contextmanager
def locked(folder: Path, work: str) -> Iterator[None]:
    """Make or reopen an output folder, and lock it for one kind of work, such as "search"."""
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
            f"another {work} is using the output folder",
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
