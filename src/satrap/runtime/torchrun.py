"""Rank and rendezvous of a process started by `torchrun`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

from satrap.errors import ConfigError
from satrap.runtime.environment import variables


@dataclass(frozen=True, slots=True)
class Torchrun:
    """One of the processes that `torchrun` started on one or more machines.

    Args:
        store: HOST:PORT of the `torch.distributed.TCPStore` for the rendezvous.
        rank: rank of this process, 0..size - 1.
        size: number of processes, > 1.
        local_rank: rank of this process on its machine; default: `rank`.
        local_size: number of processes on its machine; default: `size`.
        run: id of the `torchrun` job; the store may serve other jobs as well.
    """

    store: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    run: str

    @classmethod
    def from_environment(cls) -> Self | None:
        """Read this process's environment variables; None if it is the only process.

        Raises:
            ConfigError: some variables of `torchrun` are missing, or are not numbers.
        """
        environment = variables()
        try:
            size = int(environment.get("WORLD_SIZE", "1"))
            if size == 1:
                return None
            rank, store = (
                int(environment["RANK"]),
                f"{environment['MASTER_ADDR']}:{int(environment['MASTER_PORT'])}",
            )
            local = int(environment.get("LOCAL_RANK", rank)), int(environment.get("LOCAL_WORLD_SIZE", size))
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"the variables of torchrun are incomplete or invalid: {error}",
                where="environment of this process",
                why="with WORLD_SIZE > 1, the rendezvous needs RANK, MASTER_ADDR and MASTER_PORT",
                fix="start the program with torchrun, or unset these variables",
            ) from error
        return cls(store, rank, size, *local, environment.get("TORCHELASTIC_RUN_ID", ""))


def address_towards(store: str) -> str:
    """Return this machine's address on the route to HOST:PORT; loopback if the host is this machine."""
    host, _, port = store.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, int(port)))  # sends nothing
        return str(way.getsockname()[0])
