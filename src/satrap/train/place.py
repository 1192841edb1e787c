"""Where a trainer's rows are, and who trains with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from satrap.arguments import checked
from satrap.dense import ConnectedWorkers, Mesh, Workers
from satrap.dense.attempt import attempt
from satrap.dense.connected import START_SECONDS
from satrap.dense.peers import for_group
from satrap.exchange import Exchange
from satrap.exchange.collective import CollectiveExchange, Placement
from satrap.exchange.collective.torch_ranks import TorchRanks
from satrap.exchange.servers import Wire
from satrap.schema import Table
from satrap.store import StoreConfig
from satrap.torchrun import Torchrun, address_towards
from satrap.train.desk import Desk

_c10d: Any = dist
"""Parts of `torch.distributed` that its type annotations leave out."""

WRITING_SECONDS = 7 * 86_400.0
"""How long a rank may take to write its rows, or wait for a shard, as long as it shows signs of life."""


@checked()
@dataclass(frozen=True, slots=True)
class Place:
    """The surroundings of a trainer; by default one process that holds everything.

    Args:
        exchange: given the tables, returns where their rows are; default a store in this process. It is not
            called if there are none, because all features are numbers.
        workers: the processes that train together, this one among them; default this one alone. Then `fit`,
            `evaluate`, `save` and `load` are called by all of them, each with its own share of the data, and
            `exchange` returns one over shard servers, or one that these processes make up together.
        threads: PyTorch's threads inside an operation, for this whole process; default: all cores if
            satrap was imported before torch, else all but one (see `satrap.threads`).
        desk: where moves of rows between shards are asked for, see `Mover`; default nowhere.
    """

    exchange: Callable[[Sequence[Table]], Exchange] | None = None
    workers: Workers = field(default_factory=Workers)
    threads: int | None = None
    desk: Desk | None = None

    @property
    def share(self) -> dict[str, int]:
        """This process's part of the data, as arguments of `Dataset.with_options`."""
        return {"worker": self.workers.data.rank, "workers": self.workers.data.size}

    @classmethod
    def from_environment(
        cls,
        *,
        store: StoreConfig = StoreConfig(),
        wire: Wire = Wire(),
        placement: Placement = Placement(),
        pools: bool = False,
        mesh: Mesh | None = None,
        device: str = "cpu",
        threads: int | None = None,
        deadline: float = 30.0,
    ) -> Place:
        """Return the place of a process that `torchrun` has started; without it, one process alone.

        ```python
        place = satrap.train.Place.from_environment()
        data = satrap.data.read("train.parquet", schema).with_options(**place.share)
        trainer = satrap.Trainer(model, schema, ..., place=place)
        ```

        With `torchrun --nproc-per-node 4 train.py`, four processes hold the rows and train together, see
        `CollectiveExchange`. `python train.py` is one process with a store of its own.

        Args:
            store: the same as the trainer's.
            wire: number formats of rows, their gradients and the network's between the processes.
            placement: which processes hold the rows of a table; by default each holds a part of every table.
            pools: see `CollectiveExchange`; for `sync` without `clip_norm`, and where `Mesh.peers` is 1.
            mesh: which parts of the network the processes have; default a whole one each.
            device: where the network computes.
            threads: see the class.
            deadline: seconds until a process that does not answer counts as lost.

        Raises:
            ConfigError: variables of `torchrun` are missing or no numbers; see also `ConnectedWorkers`.
            ExchangeError: the other processes did not come.
        """
        launched = Torchrun.from_environment()
        if launched is None:
            return cls(threads=threads)
        workers = connected(launched, device=device, deadline=deadline, wire=wire, mesh=mesh)

        def exchange(tables: Sequence[Table]) -> Exchange:
            ranks, aside = (torch_ranks(workers, seconds) for seconds in (deadline, WRITING_SECONDS))
            return CollectiveExchange(
                ranks, aside, tables, store=store, wire=wire, placement=placement, pools=pools
            )

        return cls(for_group(workers.peers, exchange), workers, threads)


def connected(
    launched: Torchrun, *, device: str, deadline: float, wire: Wire, mesh: Mesh | None
) -> ConnectedWorkers:
    """Return a process that `torchrun` has started as one of several workers, see `ConnectedWorkers`."""
    name, _, port = launched.store.rpartition(":")
    limit = timedelta(seconds=START_SECONDS)
    kept = _c10d.PrefixStore(
        f"satrap/{launched.run}", _c10d.TCPStore(name, int(port), None, False, limit, wait_for_workers=False)
    )
    this = attempt(kept, launched.rank, launched.size, START_SECONDS)
    return ConnectedWorkers(
        launched.store,
        launched.rank,
        launched.size,
        host=address_towards(launched.store),
        device=device,
        deadline=deadline,
        prefix=f"satrap/{launched.run}/{this}",
        wire=wire,
        mesh=mesh,
    )


def torch_ranks(workers: ConnectedWorkers, deadline: float) -> TorchRanks:
    """Return the processes that hold rows together: the first of each group of peers, which call this."""
    among = workers.mesh.axes(0)["data"] if workers.mesh.peers > 1 else None
    return TorchRanks(deadline, workers.silent, among, workers.watch)
