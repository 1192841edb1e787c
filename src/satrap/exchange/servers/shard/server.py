"""A shard of every table, served on a socket."""

from __future__ import annotations

from pathlib import Path

from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.shard.recovery import Recovery
from satrap.exchange.servers.shard.service import Service
from satrap.rpc import Key, check_listen
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.server import Server
from satrap.rpc.server.sessions import Limits


class ShardServer(Server):
    """One shard, served on a socket.

    ```python
    with ShardServer("127.0.0.1:0") as server:      # port 0: any free one
        exchange = ServersExchange([server.address], tables)
    ```

    The first client's hello configures the tables; later hellos must agree. Requests of all clients are
    executed in order of arrival, except that in `sync` with several workers a request waits until the
    optimizer steps before it are complete.

    Args:
        listen, key, limits: see `Server`.
        config: the tables; None: taken from the first hello.
        journal: folder where every request is written before it is executed. After its process has died, the
            shard recovers from the journal exactly, in the background, while clients wait. None: no journal.
        rehearses: load or compile all machine code for its tables before accepting the first hello; clients
            are notified of the preparation. By default, the first requests take longer instead.

    Attributes:
        service: the handler; its `statistics` include the counters of the store.
        recovery: recovery from the journal, if there is one.

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
