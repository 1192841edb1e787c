"""The location of a trainer's rows, and the workers that train together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from satrap.dense import ConnectedWorkers, Mesh, Workers
from satrap.dense.comm.rendezvous import attempt
from satrap.dense.comm.torch_workers import START_SECONDS
from satrap.exchange import Exchange
from satrap.exchange.collective import CollectiveExchange, Placement
from satrap.exchange.collective.torch_ranks import TorchRanks
from satrap.exchange.servers import Wire
from satrap.exchange.wrappers.broadcast import for_group
from satrap.runtime.arguments import checked
from satrap.runtime.events import Report
from satrap.runtime.torchrun import Torchrun, address_towards
from satrap.schema import Table
from satrap.store import StoreConfig
from satrap.train.predictor import BatchSource
from satrap.train.resharding.requests import RequestSource

_c10d: Any = dist
"""Parts of `torch.distributed` that its type annotations omit."""

OpenData = Callable[[str], BatchSource | None]

WRITING_SECONDS = 7 * 86_400.0
"""Time limit for a rank that waits for a shard, as long as it sends heartbeats."""


@checked()
@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The environment of a trainer; by default one process that holds everything.

    Args:
        exchange: given the tables, returns the exchange for their rows; default a store in this process. It
            is not called without tables, if all features are numbers.
        workers: the processes that train together, including this one; default this one alone. With several
            workers, all call `fit`, `evaluate`, `save` and `load`, each with its own share of the data, and
            `exchange` returns one over shard servers, or a collective one of these processes.
        threads: PyTorch's threads inside an operation, for this whole process; default: all cores if satrap
            was imported before torch, else all but one (see `satrap.runtime.threads`).
        desk: source of orders to move rows between shards, see `Mover`; default none.
        device: device of the network on this worker; None: the trainer's.
        data: in a run of a recipe, returns this process's share of a part of the data, None without rows;
            default: it reads the files itself.
        report: called with the events of this process.
        trial: only measure validation metrics: no test, no saved model. Default False.
    """

    exchange: Callable[[Sequence[Table]], Exchange] | None = None
    workers: Workers = field(default_factory=Workers)
    threads: int | None = None
    desk: RequestSource | None = None
    device: str | None = None
    data: OpenData | None = None
    report: Report = lambda _: None
    trial: bool = False

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
    ) -> WorkerContext:
        """Return the place of a process that `torchrun` has started; without `torchrun`, a single process.

        ```python
        place = satrap.train.WorkerContext.from_environment()
        data = satrap.data.read("train.parquet", schema).with_options(**place.share)
        trainer = satrap.Trainer(model, schema, ..., place=place)
        ```

        With `torchrun --nproc-per-node 4 train.py`, four processes hold the rows and train together, see
        `CollectiveExchange`. `python train.py` is one process with its own store.

        Args:
            store: the same as the trainer's.
            wire: number formats between the processes, for rows, their gradients and the network's gradients.
            placement: placement of the rows of each table on processes; by default each holds a part of every
                table.
            pools: see `CollectiveExchange`; for `sync` without `clip_norm`, and where `Mesh.peers` is 1.
            mesh: distribution of the network over the processes; default: each holds all of it.
            device: device of the network.
            threads: see the class.
            deadline: seconds until a process that does not respond counts as lost.

        Raises:
            ConfigError: variables of `torchrun` are missing or not numbers; see also `ConnectedWorkers`.
            ExchangeError: the other processes did not join in time.
        """
        launched = Torchrun.from_environment()
        if launched is None:
            return cls(threads=threads)
        workers = connected(launched, device=device, deadline=deadline, wire=wire, mesh=mesh)

        def exchange(tables: Sequence[Table]) -> Exchange:
            ranks = torch_ranks(workers, deadline)
            return CollectiveExchange(ranks, tables, store=store, wire=wire, placement=placement, pools=pools)

        return cls(for_group(workers.peers, exchange), workers, threads)


def connected(
    launched: Torchrun, *, device: str, deadline: float, wire: Wire, mesh: Mesh | None
) -> ConnectedWorkers:
    """Return a process that `torchrun` has started as one of several workers, see `ConnectedWorkers`."""
    name, _, port = launched.store.rpartition(":")
    limit = timedelta(seconds=START_SECONDS)
    run_store = _c10d.PrefixStore(
        f"satrap/{launched.run}", _c10d.TCPStore(name, int(port), None, False, limit, wait_for_workers=False)
    )
    this = attempt(run_store, launched.rank, launched.size, START_SECONDS)
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
    """Return the ranks that hold rows together: the first of each group of peers, which all call this."""
    among = workers.mesh.axes(0)["data"] if workers.mesh.peers > 1 else None
    return TorchRanks(deadline, workers.silent, among, workers.watch)
