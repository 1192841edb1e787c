"""Requests to a run while it trains, and its answers: small files in the run folder.

Any process that reaches the folder may ask; so it works where the run was started on another machine, too.
Each file is written whole: under another name, synced, then renamed.
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
from satrap.events import Report
from satrap.exchange.shard_map import ShardMap
from satrap.launch.events import RowsMoved
from satrap.launch.folder import LOCK, locked
from satrap.train.desk import Desk, Moved, Order

AT_WORK = "at_work"
"""File that a run holds for those who ask: if they tried `LOCK`, they could keep a run from starting."""

LOOK_SECONDS = 0.2
"""Between two looks for new files."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a user wants of a run: `command` is list, add, drain or balance of shards, or workers.

    `number` is the shard to drain, or how many workers there are to be. `by` is what to balance by, see
    `Order`.
    """

    id: str
    command: str
    number: int = -1
    by: str = "rows"


class Mailbox:
    """The folder of requests, answers and the order that the workers carry out.

    Args:
        folder: `requests` in the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._order = folder / "order.json"
        self._looked_at = 0.0

    # -- of who asks

    def ask(self, command: str, number: int = -1, by: str = "rows") -> str:
        """Put a request in; return its id.

        Raises:
            ConfigError: no run is at work here.
        """
        if not self._at_work():
            raise ConfigError(
                "no run that could be asked trains in this folder",
                where=str(self.folder.parent),
                why="only satrap train, while it trains with other processes, can start and end them",
                fix="give the folder of such a run; to change a stopped one, resume it with another "
                "cluster.shards or cluster.workers",
            )
        request = Request(secrets.token_hex(4), command, number, by)
        write_durably(self.folder / f"{request.id}.ask.json", asdict(request))
        return request.id

    def answer(self, request: str) -> dict[str, Any] | None:
        """Return the answer to a request, None if it has not come yet.

        Raises:
            SatrapError: the request was refused, or the run has ended.
        """
        file = self.folder / f"{request}.answer.json"
        over = not self._at_work()
        if not file.exists():
            if over:
                raise ConfigError("the run has ended before it answered", where=str(self.folder.parent))
            return None
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        if "error" in found:
            raise error_of(found["error"])
        return found

    def stage(self, request: str) -> str:
        """Return in words how far a request is that has no answer yet."""
        if (self.folder / f"{request}.ask.json").exists():
            return "waiting for the run to take the request"
        order = self.order()
        if order is None or order.id != request:
            return "the run prepares it: earlier requests end, or a new process starts"
        return "the workers carry it out after their step: rows are counted, or move"

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

    # -- of the launcher

    @contextmanager
    def open(self) -> Iterator[None]:
        """Take requests from now on; what an earlier launcher left is removed.

        At the end the folder goes, unless somebody has yet to read an answer.
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
            fcntl.flock(lock, fcntl.LOCK_EX)  # who asks lets it go at once
            yield
        finally:
            (self.folder / AT_WORK).unlink(missing_ok=True)
            os.close(lock)

    def requests(self) -> Iterator[Request]:
        """Yield new requests, and remove their files; refuse those that another version has written."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for file in sorted(self.folder.glob("*.ask.json")):
            request, id = None, file.name.removesuffix(".ask.json")
            try:
                request = Request(**json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, TypeError):
                why = "the command is of another version of satrap than the run"
                fix = "ask with the version that the run was started with"
                self.reply(id, ConfigError("the run does not understand the request", why=why, fix=fix))
            file.unlink(missing_ok=True)
            if request is not None:
                yield request

    def reply(self, request: str, answer: Mapping[str, Any] | SatrapError) -> None:
        """Answer a request."""
        plain = {"error": error_values(answer)} if isinstance(answer, SatrapError) else dict(answer)
        write_durably(self.folder / f"{request}.answer.json", plain)

    def give(self, order: Order) -> None:
        """Give an order to the workers."""
        write_durably(self._order, asdict(order))

    def withdraw(self) -> None:
        """Take the order back, or away once it is carried out."""
        self._order.unlink(missing_ok=True)

    # -- of the workers

    def order(self) -> Order | None:
        """Return the order, None if there is none."""
        try:
            plain = json.loads(self._order.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        join = {int(shard): address for shard, address in plain.pop("join").items()}
        return Order(**{**plain, "join": join, "leave": tuple(plain["leave"])})


class FolderDesk(Desk):
    """The desk of rank 0: orders come from a mailbox, answers go to the launcher."""

    def __init__(self, mailbox: Mailbox, report: Report) -> None:
        self._mailbox, self._report = mailbox, report
        self._looked_at, self._done = 0.0, ""

    def order(self) -> Order | None:
        """See `Desk.order`; looks at most every `LOOK_SECONDS`."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = now
        order = self._mailbox.order()
        return None if order is None or order.id == self._done else order

    def answer(self, moved: Moved) -> None:
        """See `Desk.answer`."""
        self._done = moved.id
        self._report(RowsMoved(moved))


def write_durably(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole or not at all, and so that it survives a power cut."""
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
    """The shard map of a run and how it came about, kept in its folder, so that a resumed run knows it.

    Args:
        file: where it is kept.
        shards: `cluster.shards` when it was begun: another number in the recipe begins anew.
        map: the map of now.
        entries: one per move, as plain data.
    """

    file: Path
    shards: int
    map: ShardMap
    entries: list[dict[str, Any]]

    @classmethod
    def of(cls, file: Path, shards: int, *, resume: bool) -> MapLog:
        """Return the log of a run that resumes, if there is one for so many shards, else a new one.

        The map of a resumed run has an epoch that no earlier one had.
        """
        if resume and file.exists():
            plain = json.loads(file.read_text(encoding="utf-8"))
            if plain["shards"] == shards:
                map = ShardMap.from_dict(plain["map"])
                return cls(file, shards, map.after(map.owners, map.members), plain["entries"])
        return cls(file, shards, ShardMap(shards), [])

    def keep(self, map: ShardMap, entry: Mapping[str, Any]) -> None:
        """Write down a new map, and what was moved for it."""
        self.map = map
        self.entries.append({"epoch": map.epoch, "digest": map.digest, **entry})
        write_durably(self.file, {"shards": self.shards, "map": map.to_dict(), "entries": self.entries})
