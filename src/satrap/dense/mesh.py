"""How many processes train, and which part of the network each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from satrap.errors import ConfigError

Sharded = bool | Literal["gradients"]
"""What the processes with equal parts divide once more, see `Mesh`."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """How the dense network is spread over `data * tensor` processes.

    `Mesh(data=4)` are four copies. `Mesh(data=2, tensor=2)` are two copies, and two processes have a half of
    each layer of a copy. `Mesh(data=4, sharded=True)` divides weights, gradients and optimizer state among
    four processes, which gather the weights of a layer when they need it.

    Process `r` has the tensor coordinate `r % tensor` and trains the data share `r // tensor`; so processes
    that have parts of one copy are neighbours.

    Args:
        data: shares of each batch, default 1.
        tensor: parts of each layer, default 1.
        sharded: True: weights, gradients and optimizer state are divided over the shares (ZeRO-3);
            "gradients": gradients and optimizer state are, and weights are whole from a step's forward pass
            to the end of its backward pass (ZeRO-2); default False, not at all.
        shard_size: divide them among so many neighbouring shares only, and copy them to the others; default
            all shares.

    Raises:
        ConfigError: a number below 1, or a `shard_size` that does not divide `data`.
    """

    data: int = 1
    tensor: int = 1
    sharded: Sharded = False
    shard_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "shard_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"mesh: {name} must be >= 1, got {value}")
        if self.shard_size is not None and self.data % self.shard_size:
            raise ConfigError(
                f"shard_size {self.shard_size} does not divide the {self.data} shares of the mesh",
                why="each part must have as many copies as any other",
                fix=f"use a divisor of {self.data}",
            )

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.data * self.tensor

    @property
    def shards(self) -> int:
        """Among how many processes the weights of a tensor coordinate are divided."""
        return (self.shard_size or self.data) if self.sharded else 1

    @property
    def whole(self) -> bool:
        """Whether each process has the whole network."""
        return self.tensor == self.shards == 1

    def axes(self, rank: int) -> dict[str, list[int]]:
        """Return the processes that differ from one in a single coordinate only, in order of rank.

        "tensor": they have the other parts of the same copy. "shard": they have the other parts of what is
        sharded. "replicate": they have the same part of it. "data": those of the last two, and all that
        differ in both.
        """
        share, tensor = divmod(rank, self.tensor)
        first = share - share % self.shards
        shares = {
            "data": range(self.data),
            "shard": range(first, first + self.shards),
            "replicate": range(share % self.shards, self.data, self.shards),
        }
        found = {name: [one * self.tensor + tensor for one in each] for name, each in shares.items()}
        return found | {"tensor": [share * self.tensor + one for one in range(self.tensor)]}

    def __str__(self) -> str:
        parts = [f"{self.data} data"] + [f"{self.tensor} tensor"] * (self.tensor > 1)
        kept = "weights" if self.sharded is True else self.sharded
        sharded = f", {kept} in {self.shards} parts" if self.shards > 1 else ""
        return f"{' x '.join(parts)} = {self.size} workers{sharded}"
