"""A score server's links to its shards: the versions of each shard, and unreachable shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.client.exchange import check_reach
from satrap.exchange.shard_map import ShardMap
from satrap.rpc import Key
from satrap.rpc.client.call import told
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.serve.http.errors import RequestError
from satrap.serve.shards.kept_rows import Version

LOOK_SECONDS = 0.2
"""Interval between two status requests to a shard."""
ANSWER_SECONDS = 2.0
"""Time after which a silent shard is unreachable; requests to it fail at once until it answers again."""


class ShardConnection:
    """The connection to one shard, and the shard's last status.

    Args:
        number: number of the shard.
        address: HOST:PORT.
        map: maps rows to shards.
        key: key of the shards; None: no key.

    Attributes:
        name: name of the shard in messages.
        versions: id -> version of the shard; empty while the shard is unreachable.
        status: last status of the shard, see `RowsService.status`.
        groups: table groups of the shard, set by the first status.
        away: why the shard is unreachable; empty if it answers.
        refusal: error of a shard that has another number or map than expected; else None.
    """

    def __init__(self, number: int, address: str, map: ShardMap, key: Key | None) -> None:
        self.name = f"shard {number} at {address}"
        self.versions: Mapping[str, Version] = {}
        self.status: Mapping[str, Any] = {}
        self.away, self.refusal, self._since = "no connection was attempted yet", None, time.monotonic()
        self._number, self._address, self._map = number, address, map
        self._options = ClientOptions(key=key, deadline=ANSWER_SECONDS, heartbeat=ANSWER_SECONDS / 4)
        self._client: Client | None = None

    refusal: ConfigError | None

    def look(self, holds: str) -> None:
        """Request the shard's status, and name the version to keep; connect first if necessary."""
        try:
            if self._client is None:
                number, hello = self._number, {"shard": self._number, "map": self._map.to_dict()}
                self._client = Client(
                    "shard {}", {number: self._address}, {number: hello}, options=self._options
                )
            answer = self._client.ask(self._number, MessageKind.STATISTICS, [pack_text({"holds": holds})])
            self._has(told(answer.result()))
        except SatrapError as error:
            self.refusal = error if isinstance(error, ConfigError) else None
            self.lost(error)
            self.close()

    def _has(self, status: Mapping[str, Any]) -> None:
        try:
            versions = [Version(int(step), str(id), float(at)) for step, id, at in status["versions"]]
            self.groups = [
                TableGroup(index, tuple(map(str, tables)), int(dim))
                for index, (tables, dim) in enumerate(status["groups"])
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ExchangeError(f"the peer is not a satrap serve-shard: {error}") from error
        self.versions, self.status = {version.id: version for version in versions}, status
        self.away = ""

    def lost(self, error: SatrapError) -> None:
        """Mark the shard as unreachable."""
        if not self.away:
            self._since = time.monotonic()
        self.away, self.versions = error.what.removeprefix(f"{self.name} "), {}

    def trouble(self, version: str) -> str:
        """Return why the shard cannot serve a version; empty if it can."""
        if self.away:
            return f"{self.name} has been unreachable for {time.monotonic() - self._since:.0f} s: {self.away}"
        if version not in self.versions:
            steps = ", ".join(str(v.step) for v in self.versions.values())
            return f"{self.name} no longer has the served version; it has steps {steps or 'none'}"
        return ""

    def ask(self, parts: Sequence[Buffer], version: str) -> Future[Sequence[Buffer]]:
        """Request rows of a version; raise `RequestError` if the shard is unreachable or lacks it."""
        client = self._client
        if (trouble := self.trouble(version)) or client is None:
            raise unavailable(trouble or f"{self.name} is not connected yet")
        return client.ask(self._number, MessageKind.PEEK, [version.encode(), *parts])

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close(ANSWER_SECONDS)


class ShardLinks:
    """Links to all shards; a thread per shard keeps its status up to date.

    ```python
    with ShardLinks(["127.0.0.1:7000", "127.0.0.1:7001"], None) as links:
        links.common()
    ```

    Args:
        addresses: HOST:PORT of each shard, in the order of their numbers.
        key: key of the shards; None: no key, allowed only for loopback addresses.

    Attributes:
        map: maps rows to shards.
        links: one link per shard.
        holds: id of the version whose rows are read; "": none yet.

    Raises:
        ConfigError: an address is invalid or repeated, or belongs to another machine and `key` is None.
    """

    def __init__(self, addresses: Sequence[str], key: Key | None) -> None:
        if len(set(addresses)) != len(addresses):
            raise ConfigError(
                f"an address is repeated in serving.shards: {', '.join(addresses)}",
                fix="give each shard its own HOST:PORT",
            )
        check_reach(addresses, key)
        self.map, self.holds = ShardMap(len(addresses)), ""
        self.links = [
            ShardConnection(number, address, self.map, key) for number, address in enumerate(addresses)
        ]
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(link,), name="satrap-shards", daemon=True)
            for link in self.links
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self, link: ShardConnection) -> None:
        while not self._stopping.is_set():
            # Hold a version only while all shards have it: otherwise the other shards could not advance.
            link.look("" if self.trouble(self.holds) else self.holds)
            self._stopping.wait(LOOK_SECONDS)
        link.close()

    def trouble(self, version: str) -> str:
        """Return why a version cannot be served: the trouble of the first shard that lacks it, or ""."""
        return next((trouble for link in self.links if (trouble := link.trouble(version))), "")

    def common(self) -> list[Version]:
        """Return the versions that all shards have, ascending by step; empty if a shard is unreachable."""
        first, *others = [link.versions for link in self.links]
        common = [version for id, version in first.items() if all(id in other for other in others)]
        return sorted(common, key=lambda version: version.step)

    def groups(self) -> list[TableGroup]:
        """Return the table groups of the shards, which must all have answered.

        Raises:
            ConfigError: the shards group their tables differently.
        """
        first, *others = self.links
        for link in others:
            if link.groups != first.groups:
                raise ConfigError(
                    f"{first.name} and {link.name} group their tables differently",
                    why="the same lookup would address different rows on these shards",
                    fix="start all shards with the same --set and the same satrap version",
                )
        return first.groups

    def wait(self, chosen: Callable[[list[Version]], bool], say: Callable[[str], object]) -> None:
        """Wait until `chosen` returns True for the common versions; pass each reason for waiting to `say`.

        Raises:
            ConfigError: a shard has another number or map than expected.
        """
        last, until = "", time.monotonic() + 2 * ANSWER_SECONDS
        while not chosen(self.common()):
            for link in self.links:
                if link.refusal is not None:
                    raise link.refusal
            away = [link.name for link in self.links if link.away]
            reason = ", ".join(away) if away else f"a version that all shards have: {self._listed()}"
            if reason != last and time.monotonic() > until:
                last = reason
                say(f"waiting for {reason}")
            time.sleep(LOOK_SECONDS / 4)

    def _listed(self) -> str:
        steps = (", ".join(str(v.step) for v in link.versions.values()) for link in self.links)
        return "; ".join(
            f"{link.name} has steps {text}" for link, text in zip(self.links, steps, strict=True)
        )

    def close(self) -> None:
        """Stop the threads and close the connections. May be called twice."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


def unavailable(trouble: str) -> RequestError:
    """Return the error of a request that needs rows of a shard with the given trouble."""
    return RequestError(
        503,
        trouble,
        why="scores need the rows of one version from all shards",
        fix="retry; if the error persists, check the log of that shard",
        headers={"Retry-After": "1"},
    )
