"""A worker's position in a run: the batches it has trained, and the lookups in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.embedding import EmbeddingPlan
from satrap.errors import CheckpointError
from satrap.exchange import Lookup, LookupRequest
from satrap.store.arrays import on_host
from satrap.train.state.epoch_cursor import EpochCursor
from satrap.train.step.agree import StepInput

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class InFlightLookup:
    """A lookup in flight, and the number of updates that were issued before it."""

    lookup: Lookup[Any]
    updates_seen: int


class RunCursor:
    """The position of one worker in a run.

    Args:
        rank, size, batch, together: see `EpochCursor`.

    Attributes:
        epoch: the current or next epoch.
        amid_pass: whether a resumed run still has to finish, and evaluate, an unfinished epoch.
        reading: the remaining batches of the epoch.
        ahead: lookups in flight, which the schedule stores here.
    """

    def __init__(self, rank: int, size: int, batch: int | None = None, *, together: bool = False) -> None:
        self.epoch, self.amid_pass = 0, False
        self.reading = EpochCursor(rank, size, batch, together=together)
        self.ahead: deque[tuple[StepInput, InFlightLookup]] = deque()
        self._replay: deque[tuple[int, list[_RestoredLookup]]] = deque()

    def trained(self, step: StepInput) -> None:
        """Count a step."""
        if not step.idle:
            self.reading.trained(step.ticket.batch)

    def epoch_ended(self) -> None:
        """Count an epoch and its evaluation."""
        self.epoch, self.amid_pass = self.epoch + 1, False
        self.reading.begin()

    def state(self, plan: EmbeddingPlan) -> tuple[dict[str, Any], Arrays]:
        """Return the position as (plain data, arrays), for a snapshot.

        For lookups in flight, whose requests `plan` made, it contains the unique ids and their rows, not
        pooled vectors; so a run may resume with or without embedding workers.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        in_flight = [(step, pending) for step, pending in self.ahead if not step.idle]
        for number, (step, pending) in enumerate(in_flight):
            dense = pending.lookup.requests[len(step.ticket.requests) :]
            requests = [*plan.distinct(step.ticket), *dense]
            for i, (request, rows) in enumerate(zip(requests, pending.lookup.unpooled_rows(), strict=True)):
                arrays[f"{number}.{i}.ids"] = request.ids
                arrays[f"{number}.{i}.rows"] = on_host(rows)
        plain = {
            "epoch": self.epoch,
            "streams": self.reading.state(),
            "in_flight": [pending.updates_seen for _, pending in in_flight],
        }
        return plain, arrays

    def restore(self, states: Sequence[Mapping[str, Any]], arrays: Arrays | None) -> None:
        """Resume from a snapshot: the plain data of the reader of each share, and this worker's arrays.

        Without arrays, the number of workers or the requests have changed, and lookups in flight are issued
        again.
        """
        rank = self.reading.rank
        self.epoch = states[rank if arrays is not None else 0]["epoch"]
        self.amid_pass = amid_pass(states)
        self.reading.restore([state["streams"] for state in states])
        if arrays is not None and not self.reading.of_stream:
            for number, seen in enumerate(states[rank]["in_flight"]):
                self._replay.append((seen, _answers(arrays, f"{number}.")))

    @property
    def replays(self) -> list[list[npt.NDArray[np.float32]]]:
        """The rows of the next lookups, which were in flight when the snapshot was taken."""
        return [[answer.rows for answer in answers] for _, answers in self._replay]

    def replayed(self, wanted: Sequence[LookupRequest], step: int) -> int:
        """Return the number of updates that the next of these lookups had seen.

        If its unique ids differ from the wanted ones, the data has changed: `CheckpointError` at this step.
        """
        seen, answers = self._replay.popleft()
        same = len(answers) == len(wanted) and all(
            answer.has(request.ids) for answer, request in zip(answers, wanted, strict=True)
        )
        if not same:
            raise CheckpointError(
                "the data has changed since the snapshot was taken",
                where=f"step {step}",
                why="resuming would not give the result of an uninterrupted run",
                fix="restore the old data, or start a new run",
            )
        return seen


def amid_pass(states: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether an epoch was partly trained, given the plain data of all readers' positions."""
    return any(stream["done"] for state in states for stream in state["streams"])


@dataclass(frozen=True, slots=True)
class _RestoredLookup:
    """A lookup that was in flight: its ids, the positions of ids that were dropped since, and the rows."""

    ids: npt.NDArray[np.uint64]
    forgotten: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]

    def has(self, ids: npt.NDArray[np.uint64]) -> bool:
        """Return whether these are its ids, ignoring dropped ids."""
        if len(self.ids) != len(ids):
            return False
        differ = self.ids != ids
        differ[self.forgotten] = False
        return not differ.any()


def _answers(arrays: Arrays, prefix: str) -> list[_RestoredLookup]:
    entries = {k.removeprefix(prefix): array for k, array in arrays.items() if k.startswith(prefix)}
    none, count = np.empty(0, np.int64), sum(name.endswith(".rows") for name in entries)
    return [
        _RestoredLookup(entries[f"{i}.ids"], entries.get(f"{i}.forgotten", none), entries[f"{i}.rows"])
        for i in range(count)
    ]
