"""The shards of served rows as a server sees them: what each has, and who is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.client import check_reach
from satrap.exchange.shard_map import ShardMap
from satrap.rpc import Key
from satrap.rpc.client.call import told
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.wire.frames import Buffer, Kind
from satrap.rpc.wire.text import pack_text
from satrap.serve.errors import RequestError
from satrap.serve.kept_rows import Version

LOOK_SECONDS = 0.2
"""Between two questions to a shard which versions it has."""
ANSWER_SECONDS = 2.0
"""A shard that does not answer for so long is away; each of its requests fails at once until it is back."""


class Link:
    """One shard: its connection, and what it said last.

    Args:
        number: of the shard.
        address: HOST:PORT.
        map: which rows each shard has.
        key: of the shards, None: none.

    Attributes:
        name: for people.
        versions: that it has, by id; empty while it is away.
        status: what it said last, see `RowsService.status`.
        away: why it does not answer; empty if it does.
        refusal: what it said if it is another shard than this server takes it for.
    """

    def __init__(self, number: int, address: str, map: ShardMap, key: Key | None) -> None:
        self.name = f"shard {number} at {address}"
        self.versions: Mapping[str, Version] = {}
        self.status: Mapping[str, Any] = {}
        self.away, self.refusal, self._since = "it was not asked yet", None, time.monotonic()
        self._number, self._address, self._map = number, address, map
        self._options = ClientOptions(key=key, deadline=ANSWER_SECONDS, heartbeat=ANSWER_SECONDS / 4)
        self._client: Client | None = None

    refusal: ConfigError | None

    def look(self, holds: str) -> None:
        """Ask what it has, and say which version must stay; connect first if it is away."""
        try:
            if self._client is None:
                hello = {"shard": self._number, "map": self._map.to_dict()}
                self._client = Client(
                    f"shard {self._number}", self._address, hello=hello, options=self._options
                )
            answer = self._client.ask(Kind.STATISTICS, [pack_text({"holds": holds})])
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
            raise ExchangeError(f"it answers as no shard of served rows: {error}") from error
        self.versions, self.status = {one.id: one for one in versions}, status
        self.away = ""

    def lost(self, error: SatrapError) -> None:
        """Take note that it does not answer."""
        if not self.away:
            self._since = time.monotonic()
        self.away, self.versions = error.what.removeprefix(f"{self.name} "), {}

    def trouble(self, version: str) -> str:
        """Return why it has no rows of a version; empty if it has."""
        if self.away:
            return f"{self.name} is away since {time.monotonic() - self._since:.0f} s: {self.away}"
        if version not in self.versions:
            steps = ", ".join(str(one.step) for one in self.versions.values())
            return f"{self.name} has no rows of the served version, but of steps {steps}"
        return ""

    def ask(self, parts: Sequence[Buffer], version: str) -> Future[Sequence[Buffer]]:
        """Ask for rows of a version; raise `RequestError` if the shard is away or does not have it."""
        client = self._client
        if (trouble := self.trouble(version)) or client is None:
            raise unavailable(trouble or f"{self.name} is being connected")
        return client.ask(Kind.PEEK, [version.encode(), *parts])

    def close(self) -> None:
        """End the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close(ANSWER_SECONDS)


class ShardLinks:
    """Asks all shards again and again what they have, each in a thread of its own.

    ```python
    with ShardLinks(["127.0.0.1:7000", "127.0.0.1:7001"], None) as links:
        links.common()
    ```

    Args:
        addresses: HOST:PORT of each shard, in the order of their numbers.
        key: of the shards; None: none, which loopback addresses need not have.

    Attributes:
        map: which rows each shard has.
        links: one for each shard.
        holds: id of the version whose rows are asked for; "": none yet.

    Raises:
        ConfigError: an address is none, is given twice, or is of another machine and there is no key.
    """

    def __init__(self, addresses: Sequence[str], key: Key | None) -> None:
        if len(set(addresses)) != len(addresses):
            raise ConfigError(f"each shard has its own address, got {', '.join(addresses)}")
        check_reach(addresses, key)
        self.map, self.holds = ShardMap(len(addresses)), ""
        self.links = [Link(number, address, self.map, key) for number, address in enumerate(addresses)]
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

    def _watch(self, link: Link) -> None:
        while not self._stopping.is_set():
            # A version that cannot be answered is not held: the other shards must be free to go on.
            link.look("" if self.trouble(self.holds) else self.holds)
            self._stopping.wait(LOOK_SECONDS)
        link.close()

    def trouble(self, version: str) -> str:
        """Return why a version cannot be answered: what is wrong with the first shard that lacks it."""
        return next((trouble for link in self.links if (trouble := link.trouble(version))), "")

    def common(self) -> list[Version]:
        """Return the versions that all shards have, ascending by step; none if one of them is away."""
        first, *others = [link.versions for link in self.links]
        found = [version for id, version in first.items() if all(id in other for other in others)]
        return sorted(found, key=lambda version: version.step)

    def groups(self) -> list[TableGroup]:
        """Return the table groups of the shards, all of which have answered.

        Raises:
            ConfigError: they differ.
        """
        first, *others = self.links
        for link in others:
            if link.groups != first.groups:
                raise ConfigError(
                    f"{first.name} and {link.name} group their tables in different ways",
                    why="one request would mean different rows to them",
                    fix="start all shards with the same --set and the same satrap",
                )
        return first.groups

    def wait(self, chosen: Callable[[list[Version]], bool], say: Callable[[str], object]) -> None:
        """Wait until `chosen` is content with the common versions; `say` hears once what it waits for.

        Raises:
            ConfigError: a shard is another one than its address says.
        """
        said, until = "", time.monotonic() + 2 * ANSWER_SECONDS
        while not chosen(self.common()):
            for link in self.links:
                if link.refusal is not None:
                    raise link.refusal
            away = [link.name for link in self.links if link.away]
            waits = f"waiting for {', '.join(away)}" if away else f"waiting for a version: {self._listed()}"
            if waits != said and time.monotonic() > until:
                said = waits
                say(waits)
            time.sleep(LOOK_SECONDS / 4)

    def _listed(self) -> str:
        steps = ([str(one.step) for one in link.versions.values()] for link in self.links)
        return "; ".join(
            f"{link.name} has {', '.join(own)}" for link, own in zip(self.links, steps, strict=True)
        )

    def close(self) -> None:
        """End the threads and the connections. Closing twice is fine."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


def unavailable(trouble: str) -> RequestError:
    """Return the error of a request that would need rows of a shard that cannot give them."""
    return RequestError(
        503,
        trouble,
        why="an answer needs the rows of one version from all shards; others would be wrong",
        fix="try again; if it lasts, look at the log of that shard",
        headers={"Retry-After": "1"},
    )
