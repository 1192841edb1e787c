"""The state of a training run: the network, its rows, its account, and each worker's position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.checkpoint import Checkpoint, Series, write_checkpoint
from satrap.checkpoint.manifest import reading_settings
from satrap.checkpoint.saved_dense import DensePart
from satrap.checkpoint.snapshot import open_checkpoint
from satrap.dense import DENSE_TABLE, DenseBackend, DenseState
from satrap.errors import CheckpointError
from satrap.train.predictor import Predictor
from satrap.train.progress.fit_stats import FitStats
from satrap.train.progress.observer import Observer
from satrap.train.progress.plateau_control import PlateauControl
from satrap.train.schedule import TrainingSchedule
from satrap.train.state.across_workers import opened_network, shared, told
from satrap.train.state.best import Best
from satrap.train.state.coordinator import SharedCut, on_holders
from satrap.train.state.run_cursor import RunCursor


class TrainingState:
    """Everything in a snapshot, and the methods that save and restore it.

    The trainer makes it, and the loop changes it. Snapshots and best weights are copies of it. None of these
    depends on the others. A checkpoint includes `arguments`, other arguments of the trainer as plain data.

    Attributes:
        run: the account of the current `fit`.
        position: this worker's position in it.
        series: its snapshots; None: it takes none.
        best: its best weights so far.
        of_loss: arrays that a loss changes in each step, equal on all workers; a snapshot has them.
        fitting: whether a `fit` is running.
        stopping: whether a stop was requested; the end of `fit` resets it.
        started: whether the initial rows of tables were loaded, or rows restored.
    """

    def __init__(
        self,
        predictor: Predictor,
        dense: DenseBackend,
        control: PlateauControl,
        schedule: TrainingSchedule,
        arguments: Mapping[str, Any],
    ) -> None:
        self.predictor, self.dense, self.control = predictor, dense, control
        self.schedule, self._arguments = schedule, arguments
        self.model, self.exchange, self.workers = predictor.model, predictor.exchange, predictor.workers
        self.fitting = self.stopping = self._seeded = self.started = False
        self.begin()

    def begin(
        self,
        epochs: int = 0,
        observers: Sequence[Observer] = (),
        series: Series | None = None,
        data: object = None,
    ) -> None:
        """Open the account of a `fit` of `epochs` epochs; `series` are its snapshots, if any."""
        self.run = FitStats(self.predictor.schema.labels, epochs, observers, self.workers)
        share, batch = self.workers.data, getattr(data, "batch_size", None)
        self.position = RunCursor(share.rank, share.size, batch, together=not self.steps_alone)
        self.series, self.best = series, Best(series)
        self.of_loss: dict[str, npt.NDArray[Any]] = {}

    @property
    def steps_alone(self) -> bool:
        """Whether workers take their steps without waiting for each other."""
        return self.dense.partners.size < self.workers.size

    def seed_rows(self) -> None:
        """Write the network's weights into the store, if they are rows that it does not have yet."""
        self.workers.solo("dense weights", self._seed)

    def _seed(self) -> None:
        if self.dense.requests and not self._seeded:
            self.dense.seed(self.exchange)
            self._seeded = True

    def start_rows(self, load: Callable[[], object]) -> None:
        """Load the initial rows of tables, unless they were loaded or rows were restored."""
        if not self.started:
            self._on_rows("loading the initial rows", load)
        self.started = True

    def settle(self, stage: str) -> None:
        """Wait until all workers are here and all their updates are applied; then networks are equal."""
        # The flush comes before the barrier: behind it the updates of all workers are applied, and reading
        # the store's weights is safe.
        self.exchange.flush()
        self.workers.meet(stage)
        self.dense.settle(self.exchange)

    def total_up(self) -> None:
        """Settle at the end of training, and sum the samples of all workers if each has counted its own."""
        self.settle("end of training")
        if self.steps_alone:
            [samples] = self.workers.data.count([self.run.progress.samples])
            self.run.progress.samples = int(samples)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the training for a checkpoint, as plain data."""
        return {
            **self._arguments,
            "schema": self.predictor.schema.to_dict(),
            "mode": self.schedule.mode,
            "staleness": self.schedule.staleness,
            "staleness_warmup": self.schedule.warmup,
            "steps": self.run.steps,
            "lr_scale": self.control.lr_scale,
            "loss_scale": self.dense.scale.value,
            "loss_scale_steps": self.dense.scale.accepted,
        }

    def save(self, places: Iterable[str]) -> tuple[str, CheckpointError | None]:
        """Write a checkpoint to the first writable of some folders or fsspec URLs.

        Return its place, empty if no place was writable, and, in process 0, the error of the first place.
        Only process 0 reads `places`, and no further than needed.
        """
        self.settle("before saving")
        remaining, errors, saved = iter(() if self.workers.rank else places), list[CheckpointError](), ""
        while not saved and (place := told(self.workers, next(remaining, ""))):
            saved = told(self.workers, place if self._save_to(place, errors) else "")
        return saved, next(iter(errors), None)

    def _save_to(self, place: str, errors: list[CheckpointError]) -> bool:
        """Write a checkpoint to a place; return, in process 0, whether that succeeded; store its error."""
        dense, saved = self.dense, False
        cut = SharedCut(self.exchange, self.workers, None if dense.whole else dense.part(), still=True)
        if cut.assists:
            cut.assist()
        elif self.workers.rank == 0:
            network = dense.part() if dense.whole else DensePart()
            checkpoint = Checkpoint(self.settings(), network.weights, network.optimizer, ())
            try:
                cut.direct(lambda: write_checkpoint(place, cut.fill(checkpoint)))
                saved = True
            except CheckpointError as error:
                errors.append(error)
        self.workers.meet("saving")
        return saved

    def restore(
        self, checkpoint: Checkpoint, place: str = "", *, follow: bool = False, feed: bool = False
    ) -> None:
        """Restore the weights, optimizer state and rows of a checkpoint.

        Process 0 loads the rows, or all processes do if each holds some. With `place`, the URL of the
        checkpoint, each holder of rows loads its own from it, with all state that is needed to continue
        exactly. For `follow` and `feed` see `RowSource.read`.
        """
        self.started = True
        with reading_settings(place):
            self.dense.restore(DenseState(checkpoint.model, checkpoint.optimizer))
            settings = checkpoint.settings
            self.control.lr_scale = float(settings["lr_scale"])
            self.dense.scale.restore(float(settings["loss_scale"]), int(settings["loss_scale_steps"]))
        if place:
            read = partial(self.exchange.rows.read, place, follow=follow, feed=feed, exact=True)
            self._on_rows("loading rows", read)
            self._seeded = bool(self.dense.requests)
        else:
            self._on_rows("loading rows", lambda: self._load_rows(checkpoint))

    def _on_rows(self, stage: str, work: Callable[[], object]) -> None:
        on_holders(self.exchange, self.workers, stage, work)

    def _load_rows(self, checkpoint: Checkpoint) -> None:
        for table, chunk in checkpoint.chunks:
            if table != DENSE_TABLE or self.dense.requests:
                self.exchange.rows.load(table, chunk)
                self._seeded = self._seeded or table == DENSE_TABLE

    def keep_best(self) -> str:
        """Save the current weights as the best ones; return a warning if that failed, see `Best.keep`."""
        warning = self.best.keep(self.save, self.run.steps)
        if self.best.place is None:
            self.control.forget_best()
        return warning

    def restore_best(self) -> None:
        """Restore the best weights, unless none are kept or they are the current ones."""
        if self.best.place is None or self.best.step == self.run.steps:
            return
        scale = self.control.lr_scale
        checkpoint = open_checkpoint(self.best.place) if self.workers.rank == 0 else None
        dense = opened_network(self.workers, self.best.place, whole=self.dense.whole)
        # Rows created since then must start afresh.
        self._on_rows("clearing rows", self.exchange.rows.clear)
        # With a place, each process reads its rows.
        place = self.best.place if self.exchange.collective else ""
        self.restore(shared(checkpoint, self.workers, dense), place)
        self.control.lr_scale = scale

    def of_worker(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return this worker's own state, as plain data and as tensors."""
        extra: dict[str, Tensor] = {"random.cpu": torch.get_rng_state()}
        if (device := self.predictor.embeddings.device).type == "cuda":
            extra["random.cuda"] = torch.cuda.get_rng_state(device)
        extra |= {f"buffer.{name}": tensor for name, tensor in self.dense.own().items()}
        run, window = self.run.state()
        position, in_flight = self.position.state(self.predictor.plan)
        for part, arrays in (("run", window), ("ahead", in_flight), ("loss", self.of_loss)):
            extra |= {f"{part}.{name}": torch.from_numpy(np.array(a)) for name, a in arrays.items()}
        run |= {"control": [self.control.best, self.control.bad], "groups": self._groups, **position}
        run["of_batches"] = self.predictor.plan.of_batches
        return {**run, "kept_is_current": self.best.step == run["progress"]["step"]}, extra

    @property
    def _groups(self) -> list[list[str]]:
        """The tables of each table group, which determine the requests of a lookup."""
        return [list(group.tables) for group in self.exchange.groups]

    def restore_worker(self, snapshot: Checkpoint) -> None:
        """Restore this worker's own state or, with another number of workers, the common state."""
        runs = [snapshot.settings["run"], *snapshot.settings["peers"]]
        extras, best = [snapshot.extra, *snapshot.others], snapshot.settings.get("best")
        rank, shares = self.workers.rank, _shares(runs)
        same = (len(runs), len(shares)) == (self.workers.size, self.workers.data.size)
        run, extra = (runs[rank], extras[rank]) if same else (self._common(shares), extras[0])
        self.control.best, self.control.bad = run["control"]
        if best is None and self.control.patience is not None:
            self.control.forget_best()
        self.run.restore(run, _arrays(extra, "run."))
        self.of_loss = {name: array.copy() for name, array in _arrays(extras[0], "loss.").items()}
        self.best.resume(best, self.run.steps if run["kept_is_current"] else -1)
        plan, alike = self.predictor.plan, run["groups"] == self._groups
        alike = alike and plan.replayable and run.get("of_batches", False) == plan.of_batches
        in_flight = same and alike  # otherwise the requests of lookups differ
        self.position.restore(shares, _arrays(extra, "ahead.") if in_flight else None)
        if rank < len(runs):
            self._restore_random(extras[rank])
        if same:
            self.dense.restore_own(_part(extra, "buffer."))

    def _common(self, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the account of a worker after the number of workers changed, from one run per share."""
        run = {**runs[0], "progress": dict(runs[0]["progress"])}
        if self.schedule.mode == "async":  # each worker has counted its own samples
            samples = sum(other["progress"]["samples"] for other in runs)
            run["progress"]["samples"] = 0 if self.workers.data.rank else samples
        return run

    def _restore_random(self, extra: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(extra["random.cpu"])
        device = self.predictor.embeddings.device
        if "random.cuda" in extra and device.type == "cuda":
            torch.cuda.set_rng_state(extra["random.cuda"], device)


def _shares(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one run per share of the data: processes that read the same batches have the same streams."""
    first: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        first.setdefault(json.dumps(run["streams"]), run)
    return list(first.values())


def _part(extra: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in extra.items() if k.startswith(prefix)}


def _arrays(extra: Mapping[str, Tensor], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in _part(extra, prefix).items()}
