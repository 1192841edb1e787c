"""Writes the state of all workers to a series of checkpoints, in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from satrap.checkpoint import Background, Checkpoint, Series
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense import WorkerGroup
from satrap.dense.memory.on_disk import copied
from satrap.errors import ConfigError, SatrapError
from satrap.exchange import SnapshotCut
from satrap.train.state.across_workers import pack_worker, unpack_worker
from satrap.train.state.dense_files import DenseFiles, all_reach
from satrap.train.state.dense_stream import DenseStream
from satrap.train.state.training_state import TrainingState

Worker = tuple[dict[str, Any], dict[str, Tensor]]
"""The state of one worker: plain data and tensors."""
Contents = Callable[[SnapshotCut, Sequence[Worker]], Checkpoint]
"""Makes a checkpoint, without network and rows, from the cut and the workers' states, in process 0."""


class StateWriter:
    """Takes cuts of the state at the same step of all workers, and writes them to a series.

    All workers make one, and call `start` or `save` together. Process 0 writes; ranks that hold rows, or a
    part of the network, write their own.

    Args:
        state: state of this worker.
        series: the series of checkpoints.
        contents: returns the checkpoint without network and rows; called in process 0.
        own: returns this worker's own state.
        group: sends parts of the network; used by the thread that writes.
        feed: write only weights of rows and network, rows in this number format, see `Durability.cut`.
    """

    def __init__(
        self,
        state: TrainingState,
        series: Series,
        contents: Contents,
        *,
        own: Callable[[], Worker],
        group: Callable[[], WorkerGroup],
        feed: str | None = None,
    ) -> None:
        self._state, self._series, self._contents, self._own = state, series, contents, own
        self._workers, self._group, self._feed = state.workers, group, feed
        self._background = Background()
        self._reached = False

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
        """Take a cut, and write it in the background; for `delta` see `Durability.cut`, of process 0."""
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
        durability, all_cut = state.exchange.durability, state.exchange.collective
        # Every worker flushes before the barrier, so that the cut behind it contains the same updates of all.
        state.exchange.flush()
        workers.meet("cut")
        if self._feed is not None and state.steps_alone:
            # In async the weights are rows, which readers of a feed do not know.
            state.dense.settle(state.exchange)
        cut = durability.cut(delta=delta, feed=self._feed) if workers.rank == 0 or all_cut else None
        files = self._dense_files()
        mine = self._own()
        # Last: the gather holds the other workers back until rank 0 has taken its cut.
        others = workers.gather(pack_worker(*mine) if workers.rank else b"")[1:]
        write: Callable[[], None] | None = None
        if workers.rank and (cut is not None or files):
            write = partial(self._assist, files, None if cut is None else cut.put_back)
        elif cut is not None:
            whole = self._whole(cut, files, [mine, *map(unpack_worker, others)])
            write = partial(self._write, state.run.steps, whole, cut.put_back, files)
        if self._feed is None:
            state.run.pauses.append(time.perf_counter() - begun)
        return write

    def _dense_files(self) -> DenseFiles | DenseStream | None:
        """Return the writer of a sharded network: each process writes its part, if all reach the folder."""
        if self._state.dense.whole:
            return None
        self._reached = self._reached or all_reach(self._workers, self._series.url)
        part = self._part().copied()
        if self._reached:
            return DenseFiles(self._workers, part)
        return DenseStream(self._workers, part, self._group())

    def _part(self) -> DensePart:
        """Return the network, or this worker's part of it, not copied."""
        part = self._state.dense.part()
        return part if self._feed is None else part.only_weights()

    def _whole(
        self, cut: SnapshotCut, files: DenseFiles | DenseStream | None, workers: Sequence[Worker]
    ) -> Checkpoint | ConfigError:
        """Return the checkpoint to write, or the error that prevents copying the network."""
        checkpoint = self._contents(cut, workers)
        checkpoint.rows, checkpoint.deleted = cut.write, cut.deleted
        if files is not None:
            checkpoint.dense = files.write
            return checkpoint
        try:
            part = self._part().copied(copied)
        except ConfigError as error:  # the disk of offloaded weights is full
            return error
        checkpoint.model, checkpoint.optimizer = part.weights, part.optimizer
        return checkpoint

    def _write(
        self,
        step: int,
        checkpoint: Checkpoint | ConfigError,
        put_back: Callable[[], None],
        files: DenseFiles | DenseStream | None,
    ) -> None:
        saved = False
        try:
            if isinstance(checkpoint, ConfigError):  # the network could not be copied
                raise checkpoint
            self._series.write(step, checkpoint)
            saved = True
        except BaseException:
            try:
                put_back()  # so that the next checkpoint includes the contents of this one
            except BaseException:
                self._series.unfollow()  # or contains everything
                raise
            raise
        finally:
            try:
                if files is not None:
                    files.release()
            finally:
                self._state.exchange.durability.release(kept=saved, feed=self._feed is not None)

    def _assist(self, files: DenseFiles | DenseStream | None, put_back: Callable[[], None] | None) -> None:
        try:
            if files is not None:
                files.assist()
        finally:  # process 0 waits until this process has finished as well, even after an error
            durability = self._state.exchange.durability
            if put_back is not None and not durability.assist(feed=self._feed is not None):
                put_back()
