"""A shard of every table behind a socket."""

from __future__ import annotations

from pathlib import Path

from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.recovery import Recovery
from satrap.exchange.servers.service import Service
from satrap.rpc import Key, check_listen
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.server import Server
from satrap.rpc.server.sessions import Limits


class ShardServer(Server):
    """One shard behind a socket.

    ```python
    with ShardServer("127.0.0.1:0") as server:      # port 0: any free one
        exchange = ServersExchange([server.address], tables)
    ```

    The first client's hello configures the tables; later hellos must agree. Requests of all clients are
    executed in order of arrival, except that in `sync` with several workers a request waits until the
    optimizer steps before it are complete.

    Args:
        listen, key, limits: see `Server`.
        config: the tables; None: the first hello brings them.
        journal: folder where every request is written before it is executed. After its process has died, the
            shard recovers from it exactly, in the background, while clients wait. None: nothing is kept.
        rehearses: whether it loads or compiles all machine code for its tables before it accepts the first
            hello, while clients hear that it is at it. Else the first requests take longer, default.

    Attributes:
        service: the handler; its `statistics` has the counters of the store, too.
        recovery: from the journal, if there is one.

    Raises:
        ConfigError: as `Server`, or another process uses the journal.
        CheckpointError: the journal is damaged.
    """

    def __init__(
        self,
        listen: str,
        *,
        key: Key | None = None,
        limits: Limits | None = None,
        config: ShardConfig | None = None,
        journal: Path | None = None,
        rehearses: bool = False,
    ) -> None:
        check_listen(listen, key)
        limits = limits or Limits()
        self.service = Service(config, max_bytes=limits.message_bytes)
        self.service.rehearses = rehearses
        self.recovery = None if journal is None else Recovery(Journal(journal), self.service)
        super().__init__(listen, self.service, key=key, limits=limits, durability=self.recovery)
