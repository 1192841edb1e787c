"""How many processes train, and which part of the network each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from satrap.errors import ConfigError

Sharded = bool | Literal["gradients", "optimizer"]
"""What the processes with equal parts divide once more, see `Mesh`."""

_SHARDED: dict[Sharded, str] = {True: "weights", "gradients": "gradients", "optimizer": "optimizer state"}

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"]
"""In which order a process computes the micro-batches of a batch, see `Mesh`."""

INTERLEAVED = ("interleaved_1f1b", "looped_bfs")
"""Schedules in which each process has several stages."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """How the dense network is spread over `data * tensor * pipeline` processes.

    `Mesh(data=4)` are four copies. `Mesh(data=2, tensor=2)` are two copies, and two processes have a half of
    each layer of a copy. `Mesh(data=4, sharded=True)` divides weights, gradients and optimizer state among
    four processes, which gather the weights of a layer when they need it. `Mesh(pipeline=2)` gives the first
    layers to one process and the others to a second one, see `satrap.dense.stages`.

    Process `r` has the tensor coordinate `r % tensor`, the stage `r // tensor % pipeline`, and trains the
    data share `r // (tensor * pipeline)`; so processes that have parts of one copy are neighbours.

    Args:
        data: shares of each batch, default 1.
        tensor: parts of each layer, default 1.
        sharded: True: weights, gradients and optimizer state are divided over the shares (ZeRO-3);
            "gradients": gradients and optimizer state are, and weights are whole from a step's forward pass
            to the end of its backward pass (ZeRO-2); "optimizer": the optimizer state is, and with
            micro-batches gradients are whole, too, until they are reduced once for all (ZeRO-1); default
            False, not at all. Whatever it is, weights and optimizer state are in shards between the steps.
        shard_size: divide them among so many neighbouring shares only, and copy them to the others; default
            all shares.
        pipeline: processes that have stages, one after another, default 1. With `tensor`, the processes of a
            tensor group have parts of the layers of one stage. With `sharded`, the copies of a stage divide
            it among themselves; whatever it says, they do so as with "optimizer".
        microbatches: into how many parts a batch is cut, which pass the stages one behind another; default
            four times the processes of a pipeline.
        schedule: "1f1b" (default): a stage computes the backward pass of a part as soon as it can, so it
            keeps at most as many parts in memory as stages follow it; "gpipe": after all forward passes.
            "interleaved_1f1b" and "looped_bfs" are these two with several stages in each process, which idle
            less and send more: process p of P has the stages p, P + p, 2 P + p and so on.
        stages: names of the modules with which the second and all later stages begin; default: the most
            costly stage has as few operations as possible, see `satrap.dense.stages`.
        stages_per_rank: how many stages each process of a pipeline has; default: what `stages` has names for,
            or 2 with "interleaved_1f1b" and "looped_bfs", else 1.

    Raises:
        ConfigError: a number below 1, a `shard_size` that does not divide `data`, or a pipeline with an
            unknown schedule, with a number of parts of a batch or of stages that does not go with it, or with
            names for another number of stages.
    """

    data: int = 1
    tensor: int = 1
    sharded: Sharded = False
    shard_size: int | None = None
    pipeline: int = 1
    microbatches: int | None = None
    schedule: PipelineSchedule = "1f1b"
    stages: tuple[str, ...] = ()
    stages_per_rank: int | None = None

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "shard_size", "pipeline", "microbatches", "stages_per_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"mesh: {name} must be >= 1, got {value}")
        if self.shard_size is not None and self.data % self.shard_size:
            raise ConfigError(
                f"shard_size {self.shard_size} does not divide the {self.data} shares of the mesh",
                why="each part must have as many copies as any other",
                fix=f"use a divisor of {self.data}",
            )
        if self.pipeline > 1:
            self._check_pipeline()

    def _check_pipeline(self) -> None:
        if self.schedule not in get_args(PipelineSchedule):
            raise ConfigError(
                f"the schedule {self.schedule!r} is not known",
                why="those that split the backward pass lose gradients of what does not come from a stage",
                fix=f"use {', '.join(get_args(PipelineSchedule))}",
            )
        if (self.per_rank > 1) != (self.schedule in INTERLEAVED):
            several = self.per_rank > 1
            raise ConfigError(
                f"the schedule {self.schedule} does not go with stages_per_rank {self.per_rank}",
                why=f"it has {'one stage' if several else 'several stages'} in each process",
                fix=f"use {' or '.join(INTERLEAVED) if several else '2 or more, or 1f1b or gpipe'}",
            )
        self._check_parts()
        if self.stages and len(self.stages) != self.stage_count - 1:
            raise ConfigError(
                f"stages has {len(self.stages)} names for a pipeline of {self.pipeline}"
                + f" with {self.per_rank} stages each" * (self.per_rank > 1),
                why="it names the module with which each stage but the first begins",
                fix=f"give {self.stage_count - 1}",
            )

    def _check_parts(self) -> None:
        if self.schedule == "1f1b" and self.parts < self.pipeline:
            raise ConfigError(
                f"{self.parts} microbatches are too few for {self.pipeline} stages in the schedule 1f1b",
                why="each stage must have one to work on",
                fix=f"use {self.pipeline} or more, better {4 * self.pipeline}, or the schedule gpipe",
            )
        rounds = max(1, self.parts // self.pipeline)
        if self.schedule == "interleaved_1f1b" and self.parts % rounds:
            raise ConfigError(
                f"{self.parts} microbatches cannot be computed in {rounds} rounds of equal size",
                why=f"interleaved_1f1b has as many rounds as a pipeline of {self.pipeline} goes into them",
                fix=f"use {rounds * self.pipeline} or {(rounds + 1) * self.pipeline}, or looped_bfs",
            )

    @property
    def parts(self) -> int:
        """Into how many parts a pipeline cuts a batch."""
        return self.microbatches or 4 * self.pipeline

    @property
    def per_rank(self) -> int:
        """How many stages each process of a pipeline has."""
        if self.stages_per_rank is not None or self.schedule not in INTERLEAVED:
            return self.stages_per_rank or 1
        return (len(self.stages) + 1) // self.pipeline if self.stages else 2

    @property
    def stage_count(self) -> int:
        """Number of stages of a copy."""
        return self.pipeline * self.per_rank

    def numbers(self, process: int) -> range:
        """Return the stages that a process of a pipeline has."""
        return range(process, self.stage_count, self.pipeline)

    @property
    def peers(self) -> int:
        """Number of processes that train the same batches."""
        return self.tensor * self.pipeline

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.data * self.peers

    @property
    def shards(self) -> int:
        """Among how many processes the weights of a tensor coordinate are divided."""
        return (self.shard_size or self.data) if self.sharded else 1

    @property
    def regathers(self) -> bool:
        """Whether sharded weights are gathered again for the backward pass."""
        return self.sharded is True and self.pipeline == 1

    @property
    def reduces_once(self) -> bool:
        """Whether sharded gradients of the parts of a batch are added up whole, and reduced once."""
        return bool(self.sharded) and (self.sharded == "optimizer" or self.pipeline > 1)

    @property
    def whole(self) -> bool:
        """Whether each process has the whole network."""
        return self.peers == self.shards == 1

    def axes(self, rank: int) -> dict[str, list[int]]:
        """Return the processes that differ from one in a single coordinate only, in order of rank.

        "tensor": they have the other parts of the same layers. "pipeline": they have the other stages.
        "shard": they have the other parts of what is sharded. "replicate": they have the same part of it.
        "data": those of the last two, and all that differ in both. "peers": those of the first two and of
        both, which train the same batches.
        """
        (share, peer), tensor = divmod(rank, self.peers), rank % self.tensor
        first = share - share % self.shards
        shares = {
            "data": range(self.data),
            "shard": range(first, first + self.shards),
            "replicate": range(share % self.shards, self.data, self.shards),
        }
        peers = {
            "tensor": range(peer - tensor, peer - tensor + self.tensor),
            "pipeline": range(tensor, self.peers, self.tensor),
            "peers": range(self.peers),
        }
        found = {name: [one * self.peers + peer for one in each] for name, each in shares.items()}
        return found | {name: [share * self.peers + one for one in each] for name, each in peers.items()}

    def __str__(self) -> str:
        parts = [f"{self.data} data"] + [f"{self.tensor} tensor"] * (self.tensor > 1)
        each = f" of {self.per_rank} stages" * (self.per_rank > 1)
        parts += [f"{self.pipeline} pipeline{each}"] * (self.pipeline > 1)
        sharded = f", {_SHARDED[self.sharded]} in {self.shards} parts" if self.shards > 1 else ""
        return f"{' x '.join(parts)} = {self.size} workers{sharded}"
