"""Resuming a run that was killed or stopped: its folder, its snapshots, its history."""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from satrap.checkpoint import Series
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.manifest import reading_settings
from satrap.checkpoint.series import newest
from satrap.checkpoint.snapshot import saved_settings
from satrap.config import Recipe, load
from satrap.config.keys.derive import fill
from satrap.errors import ConfigError
from satrap.launch import code_snapshot
from satrap.launch.cluster.worker_requests import as_asked
from satrap.launch.folder.run_folder import RUNS, RunFolder, write_whole
from satrap.launch.network import without_leftovers
from satrap.report import History
from satrap.runtime.formatting import counted
from satrap.schema import Schema
from satrap.settings.training import RESERVED
from satrap.train import Checkpointing, Publishing, Trainer

Handler = Callable[[int, FrameType | None], Any]

COMPLETE = ("epochs", "steps", "patience")
"""Reasons for the end of a complete run."""

SPREADS = (
    "mesh",
    "sharded",
    "shard_size",
    "microbatches",
    "schedule",
    "stages",
    "stages_per_rank",
    "layout",
    "checkpoint_activations",
    "offload",
    "compile",
)
"""Keys of `dense` that affect the place and order of computation, but not the result."""

MAY_CHANGE = (
    ("training", "epochs"),
    ("training", "steps"),
    ("training", "threads"),
    *(("dense", key) for key in SPREADS),
    ("checkpoint",),
    ("publish",),
    ("serving",),
    ("cluster",),
    ("about",),
    ("tune",),
)
"""Keys of a recipe that may change when its run resumes."""


def checkpointing(recipe: Recipe, folder: RunFolder, notice: Callable[[str], None]) -> Checkpointing:
    """Return the settings of a run's snapshots and feed; default place is the run folder."""
    publish, publishing = recipe.sections.publish, None
    if publish.active:
        missing = recipe.sections.data.missing
        publishing = fill(Publishing, publish, url=folder.feed_place(recipe), notice=notice, missing=missing)
    url = folder.snapshots(recipe)
    return fill(Checkpointing, recipe.sections.checkpoint, url=url, notice=notice, publish=publishing)


def refuse_mixing(recipe: Recipe, plan: Checkpointing) -> None:
    """Raise `ConfigError` if a new run would mix its snapshots with the snapshots of another run."""
    if (step := Series(plan.url).latest()) is not None:
        raise ConfigError(
            f"checkpoint.url already holds snapshots of another run, the newest of step {step:,}",
            where=f"{recipe.source.where(('checkpoint', 'url'))}: {plan.url}",
            why="snapshots of two runs would be mixed",
            fix="continue that run with --resume, or set checkpoint.url to another place",
        )


def reopen(recipe: Recipe | None, output: str | None, name: str = "") -> tuple[RunFolder, Recipe]:
    """Return the folder and the recipe of the run to resume; by default the newest `runs/<name>-<n>`.

    Raises ConfigError if there is nothing to resume, or `recipe` differs from the run's recipe.
    """
    path = Path(output) if output is not None else _newest(name or (recipe.name if recipe else ""))
    folder = RunFolder(path)
    if not folder.recipe_file.exists():
        elsewhere = recipe and recipe.sections.checkpoint.url
        if recipe is None or not elsewhere or not Series(elsewhere).steps():
            raise nothing_to_resume(f"no run in {path}")
        folder = RunFolder.claim(recipe, path)
        return folder, code_snapshot.adopt(recipe, path)  # on another machine, the snapshots are sufficient
    original = load(folder.recipe_file)
    chosen = original if recipe is None else as_asked(code_snapshot.adopt(recipe, path), folder)
    _check_same(original, chosen)
    more = chosen.sections.data.stream is not None  # new events may have arrived
    if folder.stopped in COMPLETE and chosen.resolved() == original.resolved() and not more:
        raise nothing_to_resume(f"the run in {path} is complete", folder.ways_on())
    if Series(checkpointing(chosen, folder, print).url).latest() is None:
        raise nothing_to_resume(f"the run in {path} left no snapshot", folder.ways_on())
    folder.write_recipe(chosen)
    return folder, chosen


def begun(recipe: Recipe, output: str) -> bool | None:
    """Return whether the run of a recipe in a folder left a snapshot; None if the run is complete.

    Files of a run that died before its first snapshot are removed.
    """
    folder = RunFolder(Path(output))
    if complete(recipe, folder):
        return None
    if folder.recipe_file.exists():
        if folder.stopped in COMPLETE:
            return True
        recipe = load(folder.recipe_file)
    if Series(folder.snapshots(recipe)).latest() is not None:
        return True
    folder.remove()
    return False


def complete(recipe: Recipe, folder: RunFolder) -> bool:
    """Return whether the run in a folder is complete for a recipe."""
    if folder.stopped not in COMPLETE or not folder.recipe_file.exists():
        return False
    original, wanted = load(folder.recipe_file).resolved(), without_leftovers(recipe)
    return as_asked(code_snapshot.adopt(wanted, folder.path), folder).resolved() == original


def nothing_to_resume(
    where: str, fix: str = "train without --resume, or give the folder of the run: --output DIR"
) -> ConfigError:
    """Return the error for a run that cannot be resumed."""
    return ConfigError(
        "there is nothing to resume",
        where=where,
        why="resume was requested, and a new run would give another result",
        fix=fix,
    )


def _newest(name: str) -> Path:
    runs = [p for p in Path(RUNS).glob(f"{name}-*") if p.name.removeprefix(f"{name}-").isdigit()]
    if not name or not runs:
        raise nothing_to_resume(f"no run {RUNS}/{name or '<name>'}-<n>")
    return max(runs, key=lambda p: int(p.name.rsplit("-", 1)[1]))


def _check_same(kept: Recipe, given: Recipe) -> None:
    path = _difference(kept.resolved(), given.resolved())
    if path is not None:
        raise ConfigError(
            f"the recipe differs from the run's recipe in {'.'.join(path)}",
            where=given.source.where(path),
            why="the result would mix two recipes",
            fix=f"omit the recipe, or start a new run with it; the run's recipe is {kept.source.file}",
        )


def _difference(a: Any, b: Any, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Return the path of the first value that differs but must not."""
    if path in MAY_CHANGE or a == b:
        return None
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return path
    places = (_difference(a.get(k), b.get(k), (*path, str(k))) for k in sorted(a.keys() | b.keys(), key=str))
    return next((place for place in places if place is not None), None)


def trained_schema(plan: Checkpointing) -> Schema:
    """Return the schema, with its statistics, of the snapshot from which a run resumes."""
    series = Series(plan.url)
    step = series.latest()
    assert step is not None
    return _schema_at(series.place(step))


def starting_schema(recipe: Recipe) -> Schema | None:
    """Return the schema of the run that a new run starts with, see `WarmStart`; None without one."""
    start = recipe.sections.training.warm_start
    return None if start is None else _schema_at(newest(recipe.locate(start.url)))


def _schema_at(place: str) -> Schema:
    with reading_settings(place):
        return Schema.from_dict(saved_settings(open_chain(place))["schema"])


def resuming(plan: Checkpointing) -> str:
    """Return a line about the snapshot from which a run resumes."""
    series = Series(plan.url)
    step = series.latest()
    assert step is not None
    with reading_settings(series.place(step)):
        settings = series.manifest(step).settings
        run, others = settings["run"], settings["peers"] if settings["mode"] == "async" else ()
        samples = sum(worker["progress"]["samples"] for worker in (run, *others))
        evaluations = len(run["history"])
        return (
            f"resuming after step {step:,}, in epoch {run['epoch'] + 1:,}: {counted(samples, 'sample')}, "
            f"{counted(evaluations, 'evaluation')}; snapshot: {series.place(step)}"
        )


def rewind(history: History, plan: Checkpointing) -> None:
    """Remove the lines of `metrics.jsonl` after the snapshot from which the run resumes."""
    series = Series(plan.url)
    step = series.latest()
    assert step is not None
    with reading_settings(series.place(step)):
        validated = len(series.manifest(step).settings["run"]["history"])
    lines, validations = [], 0
    for line in history.path.read_text(encoding="utf-8").splitlines() if history.path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            break  # an incomplete line: the run died while writing it
        validations += entry["event"] == "validation"
        if validations > validated or entry["event"] == "test" or entry["step"] > step:
            break
        if entry["event"] == "validation":
            history.validation = {k: v for k, v in entry.items() if k not in RESERVED}
        lines.append(line + "\n")
    write_whole(history.path, "".join(lines))


@contextmanager
def signal_handlers(handlers: Mapping[int, Handler]) -> Iterator[Mapping[int, Any]]:
    """Set signal handlers and yield the previous ones; only the main thread may set them."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()} if main else {}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_at_signals() -> Iterator[Callable[[Trainer], None]]:
    """Make SIGTERM and Ctrl-C save and end the run; yield the function that sets its trainer.

    Signals take effect after the current step, or during an evaluation. By default, Python raises
    KeyboardInterrupt at any moment, even where a library swallows it or holds a lock, so that the run would
    continue or hang. A second signal of the same kind ends the run at once.
    """
    trainers: list[Trainer] = []
    terminated = False

    def terminate(number: int, _: FrameType | None) -> None:
        nonlocal terminated
        signal.signal(number, signal.SIG_DFL)
        terminated = True
        for trainer in trainers:
            trainer.request_stop()

    def interrupt(number: int, _: FrameType | None) -> None:
        signal.signal(number, before[number])
        if not any(trainer.state.fitting for trainer in trainers):
            raise KeyboardInterrupt
        trainers[0].request_stop()

    def watch(trainer: Trainer) -> None:
        trainers.append(trainer)
        if terminated:
            trainer.request_stop()

    with signal_handlers({signal.SIGTERM: terminate, signal.SIGINT: interrupt}) as before:
        yield watch
