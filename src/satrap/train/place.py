"""Where a trainer's rows are, and who trains with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from satrap.dense import Workers
from satrap.exchange import Exchange
from satrap.schema import Table


@dataclass(frozen=True, slots=True)
class Place:
    """The surroundings of a trainer; by default one process that holds everything.

    Args:
        exchange: given the tables, returns where their rows are; default a store in this process.
        workers: the processes that train together, this one among them; default this one alone. Then `fit`,
            `evaluate`, `save` and `load` are called by all of them, each with its own share of the data, and
            `exchange` returns one over shard servers, or one that these processes make up together.
        threads: PyTorch's threads inside an operation, for this whole process; default: all cores if
            satrap was imported before torch, else all but one (see `satrap.threads`).
    """

    exchange: Callable[[Sequence[Table]], Exchange] | None = None
    workers: Workers = field(default_factory=Workers)
    threads: int | None = None
