"""Requests to an exchange, and the lookup that it returns, which is later passed to the update."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from satrap.errors import SatrapError, StoreError
from satrap.store.arrays import FeatureIds

Array = npt.NDArray[np.float32]


class RowArray(Protocol):
    """float32[n, dim]: a NumPy array, or a tensor on the device where the exchange keeps its rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, dim)."""


R = TypeVar("R", bound=RowArray, covariant=True)

Seen = tuple[int, int]
"""Updates that a shard had applied when it ran a request: (of this caller, of all callers)."""


@dataclass(frozen=True, slots=True)
class Bags:
    """The ids of one feature whose rows are pooled by the holder of the table.

    Args:
        table: position of its table in the group.
        inverse: int32[k]: for each id of the batch its position among the table's ids in the request.
        offsets: int64[size + 1], bounds of the samples in `inverse`.
        weights: float32[k], or None: all 1.
        mode: "sum", "mean" or "sqrtn", see `satrap.store.pool`.
    """

    table: int
    inverse: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None
    mode: Literal["sum", "mean", "sqrtn"]

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """The unique ids of one batch in one table group.

    Args:
        group: index of the table group.
        ids: uint64[n], unique inside each table.
        splits: int64[tables + 1]: `ids[splits[t]:splits[t + 1]]` belong to the group's table `t`.
        bags: features whose rows arrive pooled, if the exchange pools their tables. Then the response has the
            rows of the other tables' ids, in order, and after them one vector per sample of each bag.
    """

    group: int
    ids: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.int64]
    bags: Sequence[Bags] = field(default=(), kw_only=True)

    @property
    def pooled(self) -> npt.NDArray[np.bool_]:
        """bool[tables]: the tables whose rows arrive pooled."""
        mask = np.zeros(len(self.splits) - 1, np.bool_)
        mask[[bag.table for bag in self.bags]] = True
        return mask

    @property
    def rows(self) -> int:
        """Number of rows and vectors in the response."""
        single = len(self.ids) - int(np.diff(self.splits)[self.pooled].sum()) if self.bags else len(self.ids)
        return single + sum(bag.size for bag in self.bags)


@dataclass(frozen=True, slots=True)
class BatchRequest(LookupRequest):
    """All ids of one batch in one table group, for a store on a device, which removes duplicates and pools.

    Other than in a `LookupRequest`, ids may repeat. The response has one vector per sample and pooled
    feature, sample by sample, and after them the rows of the ids of the features that are not pooled.

    Args:
        size: number of samples.
        features: the features, the pooled ones first.
        prepared: the ids on the device, once the exchange has prefetched the request; its lookup takes them.
    """

    size: int = 0
    features: Sequence[FeatureIds] = ()
    prepared: list[Any] = field(default_factory=list, compare=False)

    @property
    def rows(self) -> int:
        """Number of vectors and rows in the response."""
        return sum(self.size if f.mode != "none" else f.stop - f.start for f in self.features)


@dataclass(eq=False, slots=True)
class Lookup(Generic[R]):
    """An issued lookup: a future of its rows, and places that spare the update a search.

    Args:
        requests: the requests.
        rows: one array or tensor per request, valid until the caller drops them.
        exchange: issued the lookup; None: any exchange takes the update.

    Attributes:
        places: for the update, the places of each request's rows in the exchange: the shards that own them,
            their slots in the store. Empty before the lookup has run.
        shard_map: the shard map under which the places were found.
        active: number of callers with a non-empty request; in a collective exchange it may be 0 once the rows
            have arrived.
        seen: by shard, the updates it had applied before it ran the lookup.
        missed: updates that the lookup did not see, between it and its own update: (of this caller, of
            others); -1 while unknown.
        recall: returns the rows of the unique ids behind the requests; None: `result` does.
    """

    requests: Sequence[LookupRequest]
    rows: Future[list[R]] = field(default_factory=Future)
    exchange: object = None
    places: Sequence[Any] = ()
    shard_map: object = None
    active: int = 1
    seen: dict[int, Seen] = field(default_factory=dict)
    missed: Seen = (-1, -1)
    recall: Callable[[], list[R]] | None = None

    def result(self, timeout: float | None = None) -> list[R]:
        """Wait for the rows and return them; raise the exchange's error."""
        return self.rows.result(timeout)

    def fail_from(self, future: Future[Any]) -> None:
        """Fail the lookup with the error of a future, unless its rows are known already."""
        if (error := future.exception()) is not None:
            with suppress(InvalidStateError):
                self.rows.set_exception(error)

    def unpooled_rows(self) -> list[R]:
        """Return the rows of the unique ids behind the requests, as a snapshot saves them."""
        return self.result() if self.recall is None else self.recall()

    def for_update(self, exchange: object, gradients: Sequence[Any]) -> Lookup[R]:
        """Return the lookup whose rows an update of `exchange` changes: without gradients an empty one."""
        self.check(exchange)
        return self if gradients else Lookup[R](())

    def check(self, exchange: object) -> None:
        """Raise `StoreError` if another exchange issued this lookup: its places are not valid here."""
        if self.exchange is not None and self.exchange is not exchange:
            raise StoreError(
                "an update got the lookup of another exchange",
                fix="pass the lookup that this exchange returned",
            )


def answered(requests: Sequence[LookupRequest], rows: Sequence[R]) -> Lookup[R]:
    """Return a lookup whose rows are known already."""
    lookup = Lookup[R](requests)
    lookup.rows.set_result(list(rows))
    return lookup


def joined(parts: Sequence[Future[Any]], join: Callable[..., list[R]]) -> Future[list[R]]:
    """Return a future of `join(result of each part)`: complete with the last part, or the first error."""
    whole: Future[list[R]] = Future()
    lock = threading.Lock()

    def completed(part: Future[Any]) -> None:
        with lock:  # parts complete in different threads
            if whole.done():
                return
            if (failed := part.exception()) is not None:
                whole.set_exception(failed)
            elif all(other.done() for other in parts):
                try:
                    whole.set_result(join(*(other.result() for other in parts)))
                except SatrapError as error:
                    whole.set_exception(error)

    for part in parts:
        part.add_done_callback(completed)
    return whole
