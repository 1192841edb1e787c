"""Decides about requests for another number of workers: all save and end, and so many go on from there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from satrap.config import Recipe
from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.launch.actions import Action, ChangeWorkers, MakeRoom, Reply, RoleState, Say, StopRole
from satrap.launch.build import mesh_of
from satrap.launch.folder import RunFolder
from satrap.launch.mailbox import Request, write_durably
from satrap.launchers.launcher import Stop
from satrap.words import counted


class WorkerRequests:
    """Requests of users for another number of workers; one at a time.

    While the workers train, it is found out whether so many can. Then all save after their step and end, the
    others start from that snapshot, and the request is answered when they have taken a step. Servers stay.

    Args:
        workers: how many there are.

    Attributes:
        workers: of the arguments, later the newest number.
        stopping: whether workers have been asked to save and end.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.stopping = workers, False
        self._now: Request | None = None
        self._starting = self._training = False
        self._begun = 0.0
        self._about: dict[str, Any] = {}

    def ask(self, request: Request) -> list[Action]:
        """Take a request; refuse it if it cannot be carried out."""
        what, fix = "", "give another number"
        if request.number < 1:
            what = f"{request.number} workers cannot train"
        elif self._now is not None:
            what, fix = "another request for workers is being carried out", "ask again when it is done"
        elif request.number == self.workers:
            what = f"the run has {counted(self.workers, 'worker')} already"
        if what:
            return [Reply(request.id, ConfigError(what, fix=fix))]
        self._now = request
        return []

    def stepped(self) -> None:
        """Take notice that the workers train."""
        self._training = True

    def decide(self, now: float) -> list[Action]:
        """Take the time in seconds while workers train, and shards have nothing else to do."""
        if self._now is None or self.stopping or not self._training:
            return []
        if self._starting:
            seconds = now - self._begun
            self._starting, step = False, self._about["step"]
            paused = f"training paused for {seconds:.1f} s"
            said = f"{counted(self.workers, 'worker')} from step {step:,} on; {paused}"
            return [Say(said), *self._answer({"said": said, **self._about, "seconds": seconds})]
        self._begun = now
        return [MakeRoom(self._now.number)]

    def has_room(self, error: SatrapError | None, running: Iterable[RoleState]) -> list[Action]:
        """Take why so many workers could not train, None if they could."""
        assert self._now is not None
        if error is not None:
            return self._answer(error)
        self.stopping = True
        said = f"continuing with {counted(self._now.number, 'worker')}: saving after this step"
        return [Say(said), *(StopRole(role.name, Stop.SAVE) for role in running)]

    def saved(self, step: int | None) -> list[Action]:
        """Take the step of the snapshot that the workers, which have ended, have saved."""
        assert self._now is not None
        self._about = {"before": self.workers, "workers": self._now.number, "step": step or 0}
        self.workers, self.stopping, self._starting = self._now.number, False, True
        return [ChangeWorkers(self.workers)]

    def restarted(self) -> None:
        """Take notice that all workers start again."""
        self._training = False

    def give_up(self, why: str, *, final: bool = False) -> list[Action]:
        """Give up the request if workers have been asked to end; if `final`, in any case."""
        if self._now is None or not (self.stopping or final):
            return []
        self.stopping = self._starting = False
        what = f"the run goes on with {counted(self.workers, 'worker')}: {why}"
        return self._answer(ExchangeError(what, fix="ask again, if the run goes on"))

    def _answer(self, answer: dict[str, Any] | SatrapError) -> list[Action]:
        request, self._now = self._now, None
        assert request is not None
        return [Reply(request.id, answer)]


def with_workers(recipe: Recipe, workers: int, begun: int) -> Recipe:
    """Return the recipe of a run, which began with `begun` workers, with another number of them.

    Raises:
        ConfigError: the recipe does not allow so many, or while the run trains, no other number at all.
    """
    sections = recipe.sections
    mesh, ports = sections.dense.mesh, sections.cluster.metrics_port
    what = f"this run cannot go on with {counted(workers, 'worker')}"
    if mesh.tensor * mesh.pipeline > 1:
        raise ConfigError(
            what,
            where=recipe.source.where(("dense", "mesh")),
            why="each worker has a part of the network",
            fix="end the run, and resume it with another dense.mesh",
        )
    if ports and workers > begun:
        raise ConfigError(
            what,
            where=recipe.source.where(("cluster", "metrics_port")),
            why=f"it began with {begun}, and the metrics ports after theirs are those of other processes",
            fix="end the run, and resume it with cluster.metrics_port: 0, or more cluster.workers",
        )
    wanted = recipe.changed({("cluster", "workers"): workers})
    mesh_of(wanted)
    check_devices(wanted, workers)
    return wanted


def check_devices(recipe: Recipe, workers: int) -> None:
    """Raise `ConfigError` if several workers train on `cuda`, and this machine has fewer devices."""
    sections = recipe.sections
    if sections.training.device != "cuda" or workers == 1 or sections.cluster.launcher == "ray":
        return
    if torch.cuda.device_count() < workers:
        raise ConfigError(
            f"{workers} workers on cuda need as many devices, and there are {torch.cuda.device_count()}",
            fix="set cluster.workers to the number of devices",
        )


def begun_with(folder: RunFolder, recipe: Recipe) -> int:
    """Return the number of workers in the user's recipe; `recipe` has the newest number."""
    kept = _kept(folder)
    now = recipe.sections.cluster.workers
    return kept["recipe"] if kept is not None and kept["workers"] == now else now


def keep_workers(folder: RunFolder, begun: int, recipe: Recipe) -> None:
    """Have a resume begin with the workers of a recipe, though that of the user says `begun`."""
    workers = recipe.sections.cluster.workers
    if workers == begun:
        folder.workers_file.unlink(missing_ok=True)
    else:
        write_durably(folder.workers_file, {"recipe": begun, "workers": workers})
    folder.write_recipe(recipe)


def as_asked(recipe: Recipe, folder: RunFolder) -> Recipe:
    """Return a recipe that resumes a run, with the number of workers that was asked for last.

    A recipe that has another number than the run began with has its own, and so has the run's own recipe.
    """
    kept = _kept(folder)
    own = Path(recipe.source.file).absolute() == folder.recipe_file.absolute()
    if own or kept is None or recipe.sections.cluster.workers != kept["recipe"]:
        return recipe
    return recipe.changed({("cluster", "workers"): kept["workers"]})


def _kept(folder: RunFolder) -> dict[str, int] | None:
    try:
        found: dict[str, int] = json.loads(folder.workers_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
