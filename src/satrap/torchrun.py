"""What `torchrun` tells a process that it has started."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

from satrap.environment import variables
from satrap.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Torchrun:
    """One of the processes that `torchrun` has started on one machine or several.

    Args:
        store: HOST:PORT of the `torch.distributed.TCPStore` where they find each other.
        rank: number of this process among all, 0..size - 1.
        size: number of all processes, > 1.
        local_rank: number of this process among those of its machine, by default all.
        local_size: number of processes of its machine.
        run: name of what `torchrun` runs; the store may serve others as well.
    """

    store: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    run: str

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return what this process's environment says; None: it is alone.

        Raises:
            ConfigError: some variables of `torchrun` are missing, or no numbers.
        """
        given = variables()
        try:
            size = int(given.get("WORLD_SIZE", "1"))
            if size == 1:
                return None
            rank, store = int(given["RANK"]), f"{given['MASTER_ADDR']}:{int(given['MASTER_PORT'])}"
            local = int(given.get("LOCAL_RANK", rank)), int(given.get("LOCAL_WORLD_SIZE", size))
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"the environment names several processes, but not how they find each other: {error}",
                why="WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT belong together",
                fix="start the program with torchrun, or remove these variables",
            ) from error
        return cls(store, rank, size, *local, given.get("TORCHELASTIC_RUN_ID", ""))


def address_towards(store: str) -> str:
    """Return the address of this machine on the way to HOST:PORT; loopback, if that is here."""
    host, _, port = store.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, int(port)))  # sends nothing
        return str(way.getsockname()[0])
