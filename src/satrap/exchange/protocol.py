"""What every exchange offers: rows for distinct ids, their durability, and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from satrap.exchange.lookup import Lookup, Request, Rows
from satrap.exchange.statistics import ExchangeStatistics
from satrap.exchange.traffic import Traffic
from satrap.store import Chunk, Shard

if TYPE_CHECKING:
    from satrap.checkpoint.storage import FileEntry, Storage


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Tables of equal dim and optimizer, which one request serves together.

    Args:
        index: what `Request.group` names.
        tables: names, in the order that `Request.splits` follows.
        dim: weights per row.
        frozen: rows never change: updates need no gradients for them, and ignore them.
    """

    index: int
    tables: tuple[str, ...]
    dim: int
    frozen: bool = False

    @classmethod
    def of(cls, shard: Shard) -> list[Self]:
        """Return the groups of a store in this process."""
        return [cls(g.index, g.tables, g.dim, g.frozen) for g in shard.groups]


@dataclass(frozen=True, slots=True)
class Cut:
    """All rows as they were at one instant, to be written once while training goes on.

    Args:
        counts: by table, the counters of its group, the largest of each over the stores. A checkpoint keeps
            them as its setting `states.COUNTS`.
        write: takes the storage of a checkpoint and the name of its data folder, writes the rows and the
            state that the stores need to continue exactly, and returns the files. It raises CheckpointError
            or OSError, and may run in another thread.
        deleted: None if `write` writes all rows. If it writes only rows that changed since the previous cut:
            by table, the ids that had a row then and have none now.
        put_back: call it if the rows could not be kept. The next cut of changes then holds them too, and rows
            that change are no longer copied for this cut.
    """

    counts: Mapping[str, Sequence[int]]
    write: Callable[[Storage, str], Mapping[str, FileEntry]]
    deleted: Mapping[str, npt.NDArray[np.uint64]] | None = None
    put_back: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows. Iterate over them here, or call `write`; either works once.

    Args:
        chunks: (table, rows), table after table, in canonical order.
        write: takes the storage of a checkpoint and the name of its data folder, in which there must be a
            file already. Each process that holds rows writes its own there if it can reach the folder. It
            returns the files, and raises CheckpointError or OSError.
    """

    chunks: Iterator[tuple[str, Chunk]]
    write: Callable[[Storage, str], Mapping[str, FileEntry]]

    def __iter__(self) -> Iterator[tuple[str, Chunk]]:
        return self.chunks


@runtime_checkable
class Exchange(Protocol):
    """Carries ids to rows and gradients back; requests of one caller are served in the order issued.

    Attributes:
        collective: the processes that train hold the rows together, so every process makes the same calls in
            the same order, also those that have no batch. Then all of them save and restore rows: process 0
            writes, and releases the others, who assist; see `Durability`.
    """

    collective: bool

    @property
    def groups(self) -> Sequence[TableGroup]:
        """The table groups, which requests refer to by index."""

    @property
    def durability(self) -> Durability:
        """Saves and restores all rows."""

    @property
    def telemetry(self) -> Telemetry:
        """Counters."""

    def lookup(
        self, requests: Sequence[Request], *, create: bool, known: Sequence[Any] | None = None
    ) -> Lookup[Rows]:
        """Issue a lookup; returns at once.

        Args:
            requests: one per group that has ids in this batch.
            create: True in training: unknown ids get their row. False in evaluation: nothing changes and
                an unknown id reads the row it would be created with.
            known: the rows of the distinct ids, as `Lookup.distinct` returned them, of a lookup that was in
                flight when a snapshot was taken; they are answered in place of those in the store.
        """

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Announce that these will be looked up soon; returns at once, and changes nothing.

        Stores that keep rows on a disk read them meanwhile. Any thread may call it; nothing is promised.
        """

    def update(
        self,
        lookup: Lookup[Any] | None,
        gradients: Sequence[Any],
        *,
        lr_scale: float,
        finite: bool = False,
    ) -> None:
        """Issue one optimizer step for the rows of a lookup; returns at once.

        Args:
            lookup: what `lookup` returned; None: take part in a step without gradients.
            gradients: float32[n, dim] per request, arrays or tensors as the rows were; handed over, the
                caller must not write to them again.
            lr_scale: factor on every table's learning rate.
            finite: the caller has made sure that no gradient is NaN or infinite; a store in this process does
                not look again.

        Raises:
            StoreError: an earlier update was refused, or another exchange issued the lookup.
        """

    def flush(self) -> None:
        """Wait until everything issued so far has been applied."""

    def close(self) -> None:
        """Apply what was issued and release everything. Further calls are errors."""


@runtime_checkable
class Unanimous(Protocol):
    """An exchange in which the updates of all processes are one, which each of them may refuse.

    So a process need not know whether the others accept a step before it issues the update.
    """

    def refuse(self) -> None:
        """Issue, in place of an update, that no process's gradients are to be applied."""


class Durability(Protocol):
    """Saves and restores all rows. Everything issued before is applied first.

    In a collective exchange all processes call each method. Where process 0 writes a `Snapshot` or a `Cut`,
    the others call `assist` meanwhile, until process 0 calls `release`.

    Cuts for a feed, which holds weights only, have their own record of changes. They may be taken and written
    while others are; the methods are told which kind it is.
    """

    def snapshot(self) -> Snapshot:
        """Return every row.

        Nobody may change rows until they are here or written. An earlier cut and the record of changes stay
        as they are.
        """

    def cut(self, *, delta: bool | None = None, feed: str | None = None) -> Cut:
        """Return a consistent cut; the next one of its kind ends it.

        Its time does not grow with the number of rows: a row is copied only if it changes before it is
        written.

        Args:
            delta: True: only what changed since the previous cut, if that is known. False: all rows, and
                changes are recorded from now on. None: all rows.
            feed: it is one for a feed: only weights, in this format, see `Chunk.only_weights`. A lookup does
                not count as a change, and there is no state to continue from. `delta` must not be None.
        """

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        """Load the verified rows of a checkpoint into stores without rows; whoever holds rows reads its own.

        Args:
            url: of the checkpoint.
            follow: note changes from then on, so that the next cut can be a delta that follows this
                checkpoint. Ignored if the stores hold other rows too, or had no room for some.
            feed: likewise for the next cut for a feed: its newest version has the same rows.
            exact: also take over the state that the stores need to continue exactly. Counters come from any
                number of stores; the ids that wait for admission and the order of eviction come only from
                equally many stores, of groups with the same tables.

        Raises:
            CheckpointError: there is none, or it is damaged.
            StoreError: with `exact`: it is of a larger budget.
        """

    def assist(self, *, feed: bool = False) -> bool:
        """Write rows of this process whenever process 0 writes; return whether they have been kept."""
        return True

    def release(self, *, kept: bool, feed: bool = False) -> None:
        """Let the others go on after a snapshot; `kept`: what they wrote is part of a checkpoint."""
        return

    def load(self, table: str, chunk: Chunk) -> None:
        """Insert or overwrite rows with their optimizer state."""

    def clear(self) -> None:
        """Forget every row."""


class Telemetry(Protocol):
    """Counters of the stores and of this caller's requests."""

    def statistics(self) -> ExchangeStatistics:
        """Return the counters of all stores together."""

    def traffic(self) -> Traffic:
        """Return what this caller's requests met, without asking anybody; any thread may call it."""
