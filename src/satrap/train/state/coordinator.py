"""Takes a cut of the rows and the network of all processes, and lets each process write its own files."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense import Workers
from satrap.errors import CheckpointError, SatrapError, error_of, error_values
from satrap.exchange import Exchange, SnapshotCut
from satrap.exchange.states import Counts, largest
from satrap.train.state.across_workers import told

ROWS, NETWORK = "rows", "part of the network"


def on_holders(exchange: Exchange, workers: Workers, stage: str, work: Callable[[], object]) -> None:
    """Run work on rows in process 0 or, if each process holds rows, in all; wait for all."""
    if exchange.collective:
        exchange.flush()
        work()
        workers.meet(stage)
    else:
        workers.solo(stage, work)


class SharedCut:
    """One cut of the rows and the network of all processes, written once.

    ```python
    cut = SharedCut(exchange, workers, part, delta=False)            # all processes, at the same time
    if workers.rank == 0:
        cut.direct(lambda: write_checkpoint(url, cut.fill(checkpoint)))
    elif cut.assists:
        cut.assist()
    ```

    Rows and network are in process 0, or each process has some of them and writes its own files: process 0
    sends the others the place, and all write at the same time. So all processes must reach it.

    Args:
        exchange: has the rows. Everything issued has been applied, and no process issues anything until all
            have made this object.
        workers: all processes.
        part: the part of the network that this process writes; it does not change until it is written. None
            if each process has the whole network, which process 0 writes in some other way.
        delta: see `RowSource.cut`; process 0 decides.
        feed, still: see `RowSource.cut`.

    Attributes:
        counts: in process 0, see `SnapshotCut`.
        assists: whether this process has files to write for process 0.
    """

    def __init__(
        self,
        exchange: Exchange,
        workers: Workers,
        part: DensePart | None,
        *,
        delta: bool | None = None,
        feed: str | None = None,
        still: bool = False,
    ) -> None:
        self._workers, self._orders = workers, 0
        self._own: dict[str, Callable[[Storage, str], Mapping[str, FileEntry]]] = {}
        self._rows: SnapshotCut | None = None
        self.counts: Counts = {}
        take = partial(exchange.rows.cut, feed=feed, still=still)
        if exchange.collective:
            self._rows = self._agreed(take, delta)
            self._own[ROWS] = self._rows.write
        elif workers.rank == 0:
            self._rows = take(delta=delta)
            self.counts = self._rows.counts
        if part is not None:
            self._own[NETWORK] = partial(part.write, number=workers.rank)
        self.assists = bool(self._own) and workers.rank > 0
        # An unused key: the messages of a failed checkpoint stay in the rendezvous store under theirs.
        self._key = f"cut/{told(workers, secrets.token_hex(8))}" if self._own else ""

    def _agreed(self, take: Callable[..., SnapshotCut], delta: bool | None) -> SnapshotCut:
        """Take the cut of this process. A delta is only valid if all have one: else all give all rows."""
        delta = told(self._workers, delta)
        cut = take(delta=delta)
        replies = self._workers.gather(json.dumps([cut.deleted is None, cut.counts]).encode())
        cuts = [json.loads(reply) for reply in replies]
        if told(self._workers, any(full for full, _ in cuts)) and delta and cut.deleted is not None:
            cut.put_back()
            cut = take(delta=False)
        self.counts = largest(counts for _, counts in cuts)
        return cut

    def fill(self, checkpoint: Checkpoint) -> Checkpoint:
        """In process 0: let a checkpoint write the rows and, if all processes have parts, the network."""
        assert self._rows is not None
        checkpoint.deleted = self._rows.deleted
        checkpoint.rows = partial(self._write, ROWS) if ROWS in self._own else self._rows.write
        if NETWORK in self._own:
            checkpoint.dense = partial(self._write, NETWORK)
        return checkpoint

    def _write(self, what: str, storage: Storage, folder: str) -> dict[str, FileEntry]:
        """Let all processes write; return their files, or raise the first error once all have ended."""
        order = self._order([what, storage.absolute, folder])
        results = [self._result(what, lambda: storage, folder)]
        for rank in range(1, self._workers.size):
            results.append(json.loads(self._workers.posted(f"{order}/{rank}")))
        for result in results:
            if "error" in result:
                raise error_of(result["error"])
        return {name: FileEntry(**entry) for result in results for name, entry in result["files"].items()}

    def _result(self, what: str, storage: Callable[[], Storage], folder: str) -> dict[str, Any]:
        """Write the files of this process; return them, or the error."""
        worker = f"worker {self._workers.rank}"
        try:
            files = self._own[what](storage(), folder)
            return {"files": {name: asdict(entry) for name, entry in files.items()}}
        except SatrapError as error:
            return {"error": {**error_values(error), "where": f"{worker}: {error.where}".removesuffix(": ")}}
        except Exception as error:  # noqa: BLE001 - process 0 waits for the result, and raises it
            failed = CheckpointError(
                f"{worker} could not write its {what}: {type(error).__name__}: {error}",
                where=folder,
                why="each worker writes its own files, so all must reach the folder; older files stay",
                fix="free disk space, or choose a folder that all machines see",
            )
            return {"error": error_values(failed)}

    def _order(self, order: object) -> str:
        """Send an order to the others; return its key."""
        key, self._orders = f"{self._key}/{self._orders}", self._orders + 1
        if self._own:
            self._workers.post(key, json.dumps(order).encode())
        return key

    def direct(self, write: Callable[[], object]) -> None:
        """In process 0: call `write`, which writes the filled checkpoint, then release the others."""
        saved = False
        try:
            write()
            saved = True
        finally:
            self._order(saved)

    def assist(self) -> None:
        """In the other processes: write when process 0 does, until it releases them.

        Rows that were not saved are put back.
        """
        saved = False
        try:
            while True:
                key, self._orders = f"{self._key}/{self._orders}", self._orders + 1
                order = json.loads(self._workers.posted(key, readers=self._workers.size - 1))
                if isinstance(order, bool):
                    saved = order
                    break
                what, url, folder = order
                result = self._result(what, partial(Storage, url), folder)
                self._workers.post(f"{key}/{self._workers.rank}", json.dumps(result).encode())
        finally:
            if not saved:
                self.put_back()

    def put_back(self) -> None:
        """Let the next cut of changes include the rows of this one; see `SnapshotCut.put_back`."""
        if self._rows is not None:
            self._rows.put_back()
