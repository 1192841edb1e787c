"""Requests to a running training, and their answers: small files in the run folder.

Any process that can access the folder may send requests, also from another machine. Files are written
atomically: under another name, synced, then renamed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from satrap.errors import ConfigError, SatrapError, error_of, error_values
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster.worker_events import RowsMoved
from satrap.launch.folder.run_folder import LOCK, locked
from satrap.runtime.events import Report
from satrap.train.resharding.requests import RequestSource, ReshardRequest, ReshardResult

AT_WORK = "at_work"
"""File that a run locks to show that it accepts requests. Clients must not test `LOCK`, which could block a
starting run."""

LOOK_SECONDS = 0.2
"""Seconds between two checks for new files."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A user's request to a run: `command` is list, add, drain or balance (shards), or workers.

    `number` is the shard to drain, or the new number of workers. `by` is the quantity to balance, see
    `ReshardRequest`.
    """

    id: str
    command: str
    number: int = -1
    by: str = "rows"


class Mailbox:
    """The folder of requests, answers and the workers' current order.

    Args:
        folder: `requests` in the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._order = folder / "order.json"
        self._looked_at = 0.0

    # -- for clients

    def ask(self, command: str, number: int = -1, by: str = "rows") -> str:
        """Write a request; return its id.

        Raises:
            ConfigError: no run is active here.
        """
        if not self._at_work():
            raise ConfigError(
                "no run in this folder accepts requests",
                where=str(self.folder.parent),
                why="only a running satrap train with several processes can start and end processes",
                fix="give the folder of such a run; to change a stopped run, resume it with another "
                "cluster.shards or cluster.workers",
            )
        request = ControlRequest(secrets.token_hex(4), command, number, by)
        write_durably(self.folder / f"{request.id}.ask.json", asdict(request))
        return request.id

    def answer(self, request: str) -> dict[str, Any] | None:
        """Return the answer to a request; None before it arrives.

        Raises:
            SatrapError: the request was rejected, or the run has ended.
        """
        file = self.folder / f"{request}.answer.json"
        over = not self._at_work()
        if not file.exists():
            if over:
                raise ConfigError(
                    "the run ended before it answered the request", where=str(self.folder.parent)
                )
            return None
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        if "error" in answer:
            raise error_of(answer["error"])
        return answer

    def stage(self, request: str) -> str:
        """Return the stage of an unanswered request, as text."""
        if (self.folder / f"{request}.ask.json").exists():
            return "waiting for the run to read the request"
        order = self.order()
        if order is None or order.id != request:
            return "the run prepares the request: earlier requests finish, or a new process starts"
        return "the workers carry out the request after their step: they count or move rows"

    def _at_work(self) -> bool:
        try:
            lock = os.open(self.folder / AT_WORK, os.O_WRONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    # -- for the launcher

    @contextmanager
    def open(self) -> Iterator[None]:
        """Accept requests; remove files of an earlier launcher.

        At the end the folder is removed, unless it holds an unread answer.
        """
        with locked(self.folder, "run"), self._held():
            for file in self.folder.glob("*.json"):
                file.unlink(missing_ok=True)
            try:
                yield
            finally:
                for request in self.folder.glob("*.ask.json"):
                    request.unlink(missing_ok=True)
                (self.folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    @contextmanager
    def _held(self) -> Iterator[None]:
        lock = os.open(self.folder / AT_WORK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # clients hold it only for a moment
            yield
        finally:
            (self.folder / AT_WORK).unlink(missing_ok=True)
            os.close(lock)

    def requests(self) -> Iterator[ControlRequest]:
        """Yield new requests and remove their files; reject requests written by another version."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for file in sorted(self.folder.glob("*.ask.json")):
            request, id = None, file.name.removesuffix(".ask.json")
            try:
                request = ControlRequest(**json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, TypeError):
                why = "the command and the run have different versions of satrap"
                fix = "use the version of satrap that started the run"
                self.reply(id, ConfigError("the run cannot read the request", why=why, fix=fix))
            file.unlink(missing_ok=True)
            if request is not None:
                yield request

    def reply(self, request: str, answer: Mapping[str, Any] | SatrapError) -> None:
        """Answer a request."""
        plain = {"error": error_values(answer)} if isinstance(answer, SatrapError) else dict(answer)
        write_durably(self.folder / f"{request}.answer.json", plain)

    def give(self, order: ReshardRequest) -> None:
        """Give an order to the workers."""
        write_durably(self._order, asdict(order))

    def withdraw(self) -> None:
        """Withdraw an order, or remove a completed one."""
        self._order.unlink(missing_ok=True)

    # -- for the workers

    def order(self) -> ReshardRequest | None:
        """Return the current order; None without one."""
        try:
            plain = json.loads(self._order.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        join = {int(shard): address for shard, address in plain.pop("join").items()}
        return ReshardRequest(**{**plain, "join": join, "leave": tuple(plain["leave"])})


class FolderDesk(RequestSource):
    """The desk of rank 0: reads orders from a mailbox and reports answers to the launcher."""

    def __init__(self, mailbox: Mailbox, report: Report) -> None:
        self._mailbox, self._report = mailbox, report
        self._looked_at, self._done = 0.0, ""

    def order(self) -> ReshardRequest | None:
        """See `RequestSource.order`; checks at most every `LOOK_SECONDS`."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = now
        order = self._mailbox.order()
        return None if order is None or order.id == self._done else order

    def answer(self, moved: ReshardResult) -> None:
        """See `RequestSource.answer`."""
        self._done = moved.id
        self._report(RowsMoved(moved))


def write_durably(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file atomically and durably, so that it survives a power failure."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass
class MapLog:
    """The shard map of a run and its history, saved in the run folder for resumed runs.

    Args:
        file: the file of the log.
        shards: `cluster.shards` at the start of the log; another number in the recipe starts a new log.
        map: the current map.
        entries: one per move, as plain data.
    """

    file: Path
    shards: int
    map: ShardMap
    entries: list[dict[str, Any]]

    @classmethod
    def of(cls, file: Path, shards: int, *, resume: bool) -> MapLog:
        """Return the log of a resumed run if its number of shards is unchanged, else a new log.

        The map of a resumed run has a new epoch number.
        """
        if resume and file.exists():
            plain = json.loads(file.read_text(encoding="utf-8"))
            if plain["shards"] == shards:
                map = ShardMap.from_dict(plain["map"])
                return cls(file, shards, map.after(map.owners, map.members), plain["entries"])
        return cls(file, shards, ShardMap(shards), [])

    def keep(self, map: ShardMap, entry: Mapping[str, Any]) -> None:
        """Save a new map and a record of the move."""
        self.map = map
        self.entries.append({"epoch": map.epoch, "digest": map.digest, **entry})
        write_durably(self.file, {"shards": self.shards, "map": map.to_dict(), "entries": self.entries})
