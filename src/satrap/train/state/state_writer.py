"""Writes the state of all workers to a series of checkpoints, in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from satrap.checkpoint import Background, Checkpoint, Series
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense.memory.on_disk import copied
from satrap.errors import ConfigError, SatrapError
from satrap.exchange.states import Counts
from satrap.train.state.across_workers import pack_worker, unpack_worker
from satrap.train.state.coordinator import SharedCut
from satrap.train.state.training_state import TrainingState

Worker = tuple[dict[str, Any], dict[str, Tensor]]
"""The state of one worker: plain data and tensors."""
Contents = Callable[[Counts, Sequence[Worker]], Checkpoint]
"""Makes a checkpoint, without network and rows, from the stores' counters and the workers' states, in process
0."""


class StateWriter:
    """Takes cuts of the state at the same step of all workers, and writes them to a series.

    All workers make one, and call `start` or `save` together. Process 0 writes; ranks that hold rows, or a
    part of the network, write their own.

    Args:
        state: state of this worker.
        series: the series of checkpoints.
        contents: returns the checkpoint without network and rows; called in process 0.
        own: returns this worker's own state.
        feed: write only weights of rows and network, rows in this number format, see `RowSource.cut`.
    """

    def __init__(
        self,
        state: TrainingState,
        series: Series,
        contents: Contents,
        *,
        own: Callable[[], Worker],
        feed: str | None = None,
    ) -> None:
        self._state, self._series, self._contents, self._own = state, series, contents, own
        self._workers, self._feed = state.workers, feed
        self._background = Background()

    @property
    def busy(self) -> bool:
        """Whether this process is writing."""
        return self._background.busy

    def wait(self) -> None:
        """Wait until nothing is being written."""
        self._background.wait()

    def failure(self) -> SatrapError | None:
        """Return the error of the last checkpoint, once; the next call returns None."""
        return self._background.failure()

    def start(self, *, delta: bool | None) -> None:
        """Take a cut, and write it in the background; for `delta` see `RowSource.cut`, of process 0."""
        if (write := self._cut(delta)) is not None:
            self._background.start(write)

    def save(self, *, delta: bool | None) -> None:
        """Take a cut and write it, or raise `CheckpointError`."""
        self.wait()
        if (write := self._cut(delta)) is not None:
            write()

    def _cut(self, delta: bool | None) -> Callable[[], None] | None:
        """Return a function that writes the current state of all workers, which is copied in this call.

        Rank 0 gets a function, and so do ranks that hold rows, to write their own. The others get None. From
        the barrier until rank 0 has gathered the states of the others, no update is in flight on any worker.
        """
        state, workers, begun = self._state, self._workers, time.perf_counter()
        # Every worker flushes before the barrier, so that the cut behind it contains the same updates of all.
        state.exchange.flush()
        workers.meet("cut")
        if self._feed is not None and state.steps_alone:
            # In async the weights are rows, which readers of a feed do not know.
            state.dense.settle(state.exchange)
        part = None if state.dense.whole else self._part().copied()
        cut = SharedCut(state.exchange, workers, part, delta=delta, feed=self._feed)
        mine = self._own()
        # Last: the gather holds the other workers back until rank 0 has taken its cut.
        others = workers.gather(pack_worker(*mine) if workers.rank else b"")[1:]
        write: Callable[[], None] | None = cut.assist if cut.assists else None
        if workers.rank == 0:
            whole = self._whole(cut, [mine, *map(unpack_worker, others)])
            write = partial(self._write, state.run.steps, whole, cut)
        if self._feed is None:
            state.run.pauses.append(time.perf_counter() - begun)
        return write

    def _part(self) -> DensePart:
        """Return the network, or this worker's part of it, not copied."""
        part = self._state.dense.part()
        return part if self._feed is None else part.only_weights()

    def _whole(self, cut: SharedCut, workers: Sequence[Worker]) -> Checkpoint | ConfigError:
        """Return the checkpoint to write, or the error that prevents copying the network."""
        checkpoint = cut.fill(self._contents(cut.counts, workers))
        if self._state.dense.whole:
            try:
                part = self._part().copied(copied)
            except ConfigError as error:  # the disk of offloaded weights is full
                return error
            checkpoint.model, checkpoint.optimizer = part.weights, part.optimizer
        return checkpoint

    def _write(self, step: int, checkpoint: Checkpoint | ConfigError, cut: SharedCut) -> None:
        def write() -> None:
            if isinstance(checkpoint, ConfigError):  # the network could not be copied
                raise checkpoint
            self._series.write(step, checkpoint)

        try:
            cut.direct(write)
        except BaseException:
            try:
                cut.put_back()  # so that the next checkpoint includes the contents of this one
            except BaseException:
                self._series.unfollow()  # or contains everything
                raise
            raise
