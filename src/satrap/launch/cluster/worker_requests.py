"""Decides about requests for another number of workers: all save and end, and the new number resumes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from satrap.config import Recipe
from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.launch.build import mesh_of
from satrap.launch.cluster.actions import (
    Action,
    ChangeWorkers,
    MakeRoom,
    ReplyToRequest,
    RoleState,
    Say,
    StopRole,
)
from satrap.launch.cluster.control_requests import ControlRequest, write_durably
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.launchers.launcher import Stop
from satrap.runtime.formatting import counted


class WorkerRequests:
    """Users' requests for another number of workers, one at a time.

    While the workers train, the new number is checked. Then all workers save after their current step and
    end, and the new workers start from this snapshot. The request is answered after their first step. Servers
    keep running.

    Args:
        workers: current number of workers.

    Attributes:
        workers: current number of workers.
        stopping: whether workers were requested to save and end.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.stopping = workers, False
        self._now: ControlRequest | None = None
        self._starting = self._training = False
        self._begun = 0.0
        self._about: dict[str, Any] = {}

    def ask(self, request: ControlRequest) -> list[Action]:
        """Accept a request, or reject it if it cannot be carried out."""
        what, fix = "", "give another number"
        if request.number < 1:
            what = f"a run cannot train with {request.number} workers"
        elif self._now is not None:
            what, fix = "another request for workers is in progress", "repeat the request when it is done"
        elif request.number == self.workers:
            what = f"the run already has {counted(self.workers, 'worker')}"
        if what:
            return [ReplyToRequest(request.id, ConfigError(what, fix=fix))]
        self._now = request
        return []

    def stepped(self) -> None:
        """Record that the workers train."""
        self._training = True

    def decide(self, now: float) -> list[Action]:
        """Return the next actions; called with the time in seconds while workers train and shards are
        idle."""
        if self._now is None or self.stopping or not self._training:
            return []
        if self._starting:
            seconds = now - self._begun
            self._starting, step = False, self._about["step"]
            paused = f"training paused for {seconds:.1f} s"
            text = f"{counted(self.workers, 'worker')} from step {step:,} on; {paused}"
            return [Say(text), *self._answer({"said": text, **self._about, "seconds": seconds})]
        self._begun = now
        return [MakeRoom(self._now.number)]

    def has_room(self, error: SatrapError | None, running: Iterable[RoleState]) -> list[Action]:
        """Receive the error if the new number of workers cannot train, else None."""
        assert self._now is not None
        if error is not None:
            return self._answer(error)
        self.stopping = True
        text = f"continuing with {counted(self._now.number, 'worker')}: saving after this step"
        return [Say(text), *(StopRole(role.name, Stop.SAVE) for role in running)]

    def saved(self, step: int | None) -> list[Action]:
        """Receive the step of the snapshot saved by the ended workers."""
        assert self._now is not None
        self._about = {"before": self.workers, "workers": self._now.number, "step": step or 0}
        self.workers, self.stopping, self._starting = self._now.number, False, True
        return [ChangeWorkers(self.workers)]

    def restarted(self) -> None:
        """Record that all workers restart."""
        self._training = False

    def give_up(self, why: str, *, final: bool = False) -> list[Action]:
        """Give up the request if the workers are already stopping or if `final`."""
        if self._now is None or not (self.stopping or final):
            return []
        self.stopping = self._starting = False
        what = f"the run continues with {counted(self.workers, 'worker')}: {why}"
        return self._answer(ExchangeError(what, fix="repeat the request if the run continues"))

    def _answer(self, answer: dict[str, Any] | SatrapError) -> list[Action]:
        request, self._now = self._now, None
        assert request is not None
        return [ReplyToRequest(request.id, answer)]


def with_workers(recipe: Recipe, workers: int, begun: int) -> Recipe:
    """Return the recipe of a run with a new number of workers; the run began with `begun` workers.

    Raises:
        ConfigError: the recipe does not allow this number, or does not allow a change during training.
    """
    sections = recipe.sections
    mesh, ports = sections.dense.mesh, sections.cluster.metrics_port
    what = f"this run cannot continue with {counted(workers, 'worker')}"
    if mesh.tensor * mesh.pipeline > 1:
        raise ConfigError(
            what,
            where=recipe.source.where(("dense", "mesh")),
            why="each worker holds a part of the network",
            fix="end the run, and resume it with another dense.mesh",
        )
    if ports and workers > begun:
        raise ConfigError(
            what,
            where=recipe.source.where(("cluster", "metrics_port")),
            why=f"the run began with {begun}, and the next metrics ports belong to other processes",
            fix="end the run, and resume it with cluster.metrics_port: 0, or more cluster.workers",
        )
    changed = recipe.changed({("cluster", "workers"): workers})
    mesh_of(changed)
    check_devices(changed, workers)
    return changed


def check_devices(recipe: Recipe, workers: int) -> None:
    """Raise `ConfigError` if several workers train on `cuda`, but this machine has fewer devices."""
    sections = recipe.sections
    if sections.training.device != "cuda" or workers == 1 or sections.cluster.launcher == "ray":
        return
    if torch.cuda.device_count() < workers:
        raise ConfigError(
            f"{workers} workers on cuda need {workers} devices, but PyTorch sees {torch.cuda.device_count()}",
            fix="set cluster.workers to the number of devices",
        )


def begun_with(folder: RunFolder, recipe: Recipe) -> int:
    """Return the number of workers in the user's recipe; `recipe` has the current number."""
    saved = _kept(folder)
    now = recipe.sections.cluster.workers
    return saved["recipe"] if saved is not None and saved["workers"] == now else now


def keep_workers(folder: RunFolder, begun: int, recipe: Recipe) -> None:
    """Save a recipe's number of workers for a resume; the user's recipe has `begun` workers."""
    workers = recipe.sections.cluster.workers
    if workers == begun:
        folder.workers_file.unlink(missing_ok=True)
    else:
        write_durably(folder.workers_file, {"recipe": begun, "workers": workers})
    folder.write_recipe(recipe)


def as_asked(recipe: Recipe, folder: RunFolder) -> Recipe:
    """Return a recipe that resumes a run with the last requested number of workers.

    A recipe with another number than the run's first one keeps its number, as does the run's own recipe.
    """
    saved = _kept(folder)
    is_own = Path(recipe.source.file).absolute() == folder.recipe_file.absolute()
    if is_own or saved is None or recipe.sections.cluster.workers != saved["recipe"]:
        return recipe
    return recipe.changed({("cluster", "workers"): saved["workers"]})


def _kept(folder: RunFolder) -> dict[str, int] | None:
    try:
        numbers: dict[str, int] = json.loads(folder.workers_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return numbers
