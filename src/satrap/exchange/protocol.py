"""What every exchange does: lookups and updates of distinct ids, in the order they are issued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from satrap.store import Chunk

if TYPE_CHECKING:
    from satrap.checkpoint.storage import FileEntry, Storage


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Tables of equal dim and optimizer, which one request serves together.

    Args:
        index: what `Request.group` names.
        tables: names, in the order that `Request.splits` follows.
        dim: weights per row.
    """

    index: int
    tables: tuple[str, ...]
    dim: int


@dataclass(frozen=True, slots=True)
class Request:
    """The distinct ids of one batch in one table group.

    Args:
        group: index of the table group.
        ids: uint64[n], distinct inside each table.
        splits: int64[tables + 1]: `ids[splits[t]:splits[t + 1]]` belong to the group's table `t`.
    """

    group: int
    ids: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.int64]


Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Cut:
    """All rows as they were at one instant, to be written once while training goes on.

    Args:
        counts: by number of a table group, its counters, the largest of each over the stores: what a
            checkpoint keeps as its setting `states.COUNTS`.
        write: given the storage of a checkpoint and the name of its data folder, writes the rows there, and
            what the stores need besides them to go on exactly, and returns the files; raises CheckpointError
            or OSError. May be called in another thread.
        deleted: None: `write` writes all rows. Else those that changed since the cut before, and this is, by
            table, the ids that had a row then and have none now; those that `write` writes are not among
            them.
        put_back: to be called if the rows could not be kept: the next cut of changes holds them, too, and
            rows that change are no longer copied for this one.
    """

    counts: Mapping[str, Sequence[int]]
    write: Callable[[Storage, str], Mapping[str, FileEntry]]
    deleted: Mapping[str, npt.NDArray[np.uint64]] | None = None
    put_back: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows: iterate to have them here, or have them written. Once, either way.

    Args:
        chunks: (table, rows), table after table, in canonical order.
        write: given the storage of a checkpoint and the name of its data folder, which must have a file
            already, has the rows written there by whoever holds them, if it reaches the place, and returns
            the files; raises CheckpointError or OSError.
    """

    chunks: Iterator[tuple[str, Chunk]]
    write: Callable[[Storage, str], Mapping[str, FileEntry]]

    def __iter__(self) -> Iterator[tuple[str, Chunk]]:
        return self.chunks


class Exchange(Protocol):
    """Carries ids to rows and gradients back; requests of one caller are served in the order issued."""

    @property
    def groups(self) -> Sequence[TableGroup]:
        """The table groups, which requests refer to by index."""

    def lookup(self, requests: Sequence[Request], *, create: bool) -> Future[list[Rows]]:
        """Issue a lookup; returns at once.

        Args:
            requests: one per group that has ids in this batch.
            create: True in training: unknown ids get their row. False in evaluation: nothing changes and
                an unknown id reads the row it would be created with.

        Returns:
            A future of float32[n, dim] per request, valid until the caller drops them.
        """

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Say that these will be looked up soon; returns at once, and changes nothing.

        Stores that keep rows on a disk read them meanwhile. Any thread may call it; nothing is promised.
        """

    def update(
        self, requests: Sequence[Request], gradients: Sequence[Rows], *, lr_scale: float, finite: bool = False
    ) -> None:
        """Issue one optimizer step for the rows of each request; returns at once.

        Args:
            requests: the requests of an earlier lookup.
            gradients: float32[n, dim] per request; handed over, the caller must not write to them again.
            lr_scale: factor on every table's learning rate.
            finite: the caller has made sure that no gradient is NaN or infinite; a store in this process does
                not look again.

        Raises:
            StoreError: an earlier update was refused.
        """

    def flush(self) -> None:
        """Wait until everything issued so far has been applied."""

    def snapshot(self) -> Snapshot:
        """Return every row, after everything issued so far has been applied.

        Nobody may change rows until they are here or written. A cut that has been taken, and the noting of
        changes, stay as they are.
        """

    def cut(self, *, delta: bool | None = None) -> Cut:
        """Return a consistent cut, after everything issued so far has been applied; the next one ends it.

        It takes no time that grows with the rows: they are copied when they change before they are written.

        Args:
            delta: True: only what changed since the cut before, if that is known; False: all rows, and from
                now on changes are noted; None: all rows.
        """

    def read(self, url: str, *, follow: bool = False, exact: bool = False) -> None:
        """Load the verified rows of a checkpoint into stores without rows; whoever holds rows reads its own.

        Args:
            url: of the checkpoint.
            follow: note changes from then on, so that the next cut can be a delta that follows this
                checkpoint; not done where there are other rows, too, or some found no room.
            exact: take over as well what else the stores need to go on exactly. Counters come from any
                number of stores; which ids wait for admission, and which row is evicted next, only from as
                many as there are here.

        Raises:
            CheckpointError: there is none, or it is damaged.
            StoreError: with `exact`: it is of other tables or another budget.
        """

    def load(self, table: str, chunk: Chunk) -> None:
        """Insert or overwrite rows with their optimizer state."""

    def clear(self) -> None:
        """Forget every row, after everything issued so far has been applied."""

    def statistics(self) -> Mapping[str, Any]:
        """Return counters of the store(s), see `satrap.store.Shard.statistics`; `traffic` as "exchange"."""

    def traffic(self) -> Mapping[str, Any]:
        """Return what this caller's requests met, without asking anybody; any thread may call it.

        Returns:
            See `satrap.exchange.traffic.Traffic.report`; besides, payload bytes "sent" and "received",
            requests "resent", and requests "waiting" for an answer.
        """

    def close(self) -> None:
        """Apply what was issued and release everything. Further calls are errors."""
