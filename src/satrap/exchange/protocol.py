"""The protocol of all exchanges: rows for unique ids, the source of all rows, and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from satrap.exchange.lookup import Lookup, LookupRequest, RowArray
from satrap.exchange.telemetry import Telemetry
from satrap.store import RowChunk, Shard

if TYPE_CHECKING:
    from satrap.checkpoint.files.storage import FileEntry, Storage

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Tables of equal dim and optimizer, which one request serves together.

    Args:
        index: value of `LookupRequest.group`.
        tables: names, in the order of `LookupRequest.splits`.
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
class SnapshotCut:
    """All rows of a `RowSource` at one instant. Write them, or iterate over them; either works once.

    Args:
        counts: by table, the counters of its group, the largest of each over the stores. A checkpoint stores
            them as its setting `states.COUNTS`.
        write: takes the storage of a checkpoint and the name of its data folder, writes the rows and the
            state that the stores need to continue exactly, and returns the files. It raises CheckpointError
            or OSError, and may run in another thread.
        deleted: None if `write` writes all rows. If it writes only rows that changed since the previous cut:
            by table, the ids that had a row then and have none now.
        put_back: call it if the rows could not be saved. The next cut of changes then includes them as well,
            and rows that change are no longer copied for this cut.
        chunks: (table, rows), table after table, in canonical order; of shard servers only if `still`.
    """

    counts: Mapping[str, Sequence[int]]
    write: Callable[[Storage, str], Mapping[str, FileEntry]]
    deleted: Mapping[str, npt.NDArray[np.uint64]] | None = None
    put_back: Callable[[], None] = lambda: None
    chunks: Iterable[tuple[str, RowChunk]] = ()

    def __iter__(self) -> Iterator[tuple[str, RowChunk]]:
        return iter(self.chunks)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Rows that arrive pooled: instead of the rows of its ids, each sample gets one vector per feature.

    Args:
        by: "owner": the process that holds a whole table pools its rows, as requested by
            `LookupRequest.bags`. "embedding worker": a process in between pools all rows, and requests carry
            the samples. "device": the device that holds all rows pools them, as requested by `BatchRequest`.
        tables: the tables whose rows may arrive pooled.
        row_bytes: given the dim of a row, returns the bytes of the row and its gradient on the wire.
    """

    by: Literal["owner", "embedding worker", "device"]
    tables: frozenset[str]
    row_bytes: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """Whether the workers accept a step whose gradients are known.

    An exchange whose update is one step of all processes sends `own` along with the gradients, so it does not
    wait. Any other exchange waits for `all` before it sends anything.

    Args:
        own: whether this worker accepts the step.
        all: returns whether all workers accept it. It may wait for them, so each of them must call it, here
            or later. Further calls return the same.
    """

    own: bool
    all: Callable[[], bool]

    @classmethod
    def applied(cls, verdict: StepVerdict | None, gradients: Sequence[G]) -> Sequence[G]:
        """Return the gradients, or none if the workers reject their step."""
        return gradients if verdict is None or verdict.all() else ()


@runtime_checkable
class Exchange(Protocol):
    """Carries ids to rows and gradients back; requests of one caller are served in the order issued.

    Attributes:
        collective: the training processes hold the rows together, so every process makes the same calls in
            the same order, even without a batch, and saves and restores its own rows.
        groups: the table groups, which requests refer to by index.
        rows: saves and restores the rows.
        telemetry: counters.
        pooling: which rows arrive pooled; None: none.
        moves: a `Moves`, which moves rows between shard servers; None: the rows are elsewhere.
    """

    collective: bool
    groups: Sequence[TableGroup]
    rows: RowSource
    telemetry: Telemetry
    pooling: Pooling | None = None
    moves: Any = None

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[RowArray]:
        """Issue a lookup; returns at once.

        Args:
            requests: one per group that has ids in this batch; none: this caller has no batch in this step.
            create: True in training: unknown ids get their row. False in evaluation: nothing changes and an
                unknown id reads the row it would be created with.
        """

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """Announce that these rows will be looked up soon; returns at once, and changes nothing.

        Stores that keep rows on a disk start reading them. Any thread may call it; it is only a hint.
        """

    def apply(
        self,
        lookup: Lookup[Any],
        gradients: Sequence[Any],
        *,
        lr_scale: float,
        verdict: StepVerdict | None = None,
    ) -> None:
        """Issue one optimizer step for the rows of a lookup; returns as soon as the verdict is known.

        Args:
            lookup: the lookup that `lookup` returned.
            gradients: float32[n, dim] per request, arrays or tensors as the rows were; the caller must not
                write to them again. None at all: take part in a step that does not change these rows.
            lr_scale: factor on every table's learning rate.
            verdict: whether the workers accept the step; if they reject it, no gradient is applied. The
                caller has then checked that no gradient is NaN or infinite. Default: the step is accepted,
                and the store checks the gradients.

        Raises:
            StoreError: an earlier update was rejected, or another exchange issued the lookup.
        """
        self._raise_failed()
        gradients = StepVerdict.applied(verdict, gradients)
        self._issue_update(
            lookup.for_update(self, gradients), gradients, lr_scale, checked=verdict is not None
        )

    def _raise_failed(self) -> None:
        """Raise the error of an earlier update, if it is known."""
        return

    def _issue_update(
        self, lookup: Lookup[Any], gradients: Sequence[Any], lr_scale: float, *, checked: bool
    ) -> None:
        """Issue the update of an accepted step; `checked`: no gradient is NaN or infinite."""
        return

    def flush(self) -> None:
        """Wait until everything issued so far has been applied."""

    def close(self) -> None:
        """Apply everything issued and release all resources. Further calls are errors."""


class RowSource(Protocol):
    """Saves and restores rows: all rows or, in a collective exchange, the rows that this process saves.

    Everything issued before is applied first. In a collective exchange all processes call each method.

    Cuts for a feed, which holds weights only, have their own record of changes. They may be taken and written
    concurrently with other cuts; the methods have an argument for the kind.
    """

    def cut(self, *, delta: bool | None = None, feed: str | None = None, still: bool = False) -> SnapshotCut:
        """Return a consistent cut; the next one of its kind ends it.

        Its time does not grow with the number of rows: a row is copied only if it changes before it is
        written.

        Args:
            delta: True: only the changes since the previous cut, if they are known. False: all rows, and
                changes are recorded from now on. None: all rows.
            feed: a cut for a feed: only weights, in this format, see `RowChunk.only_weights`. A lookup does
                not count as a change, and there is no state to continue from. `delta` must not be None.
            still: no row changes until this cut has been written or iterated over. It has all rows and no
                state to continue from; earlier cuts and the record of changes stay as they are. Shards that
                do not reach the checkpoint send their rows here.
        """

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        """Load the verified rows of a checkpoint into stores without rows; each holder of rows reads its own.

        Args:
            url: URL of the checkpoint.
            follow: record changes from then on, so that the next cut can be a delta that follows this
                checkpoint. Ignored if the stores hold other rows as well, or had no space for some.
            feed: likewise for the next cut for a feed: its newest version has the same rows.
            exact: also restore the state that the stores need to continue exactly. Counters come from any
                number of stores; the ids that wait for admission and the order of eviction come only from the
                same number of stores, with the same tables per group.

        Raises:
            CheckpointError: the checkpoint does not exist, or is damaged.
            StoreError: with `exact`: the checkpoint was made with a larger memory budget.
        """

    def load(self, table: str, chunk: RowChunk) -> None:
        """Insert or overwrite rows with their optimizer state; a holder takes only its own."""

    def clear(self) -> None:
        """Delete every row."""
