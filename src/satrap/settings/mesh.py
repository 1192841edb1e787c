"""The number of training processes, and each one's part of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from satrap.compatibility import SEVERAL
from satrap.errors import ConfigError

Sharded = bool | Literal["gradients", "optimizer"]
"""The state that copies of the same part shard among themselves, see `Mesh`."""

_SHARDED: dict[Sharded, str] = {True: "weights", "gradients": "gradients", "optimizer": "optimizer state"}

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"]
"""The order in which a process computes the microbatches of a batch, see `Mesh`."""

INTERLEAVED = ("interleaved_1f1b", "looped_bfs")
"""Schedules in which each process has several stages."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """How the dense network is spread over `data * tensor * pipeline` processes.

    `Mesh(data=4)` is four copies. `Mesh(data=2, tensor=2)` is two copies, with each layer of a copy split
    between two processes. `Mesh(data=4, sharded=True)` shards weights, gradients and optimizer state over
    four processes, which gather the weights of a layer when they need them. `Mesh(pipeline=2)` gives the
    first layers to one process and the others to a second one, see `satrap.dense.parallel.stages`.

    Process `r` has the tensor coordinate `r % tensor`, the stage `r // tensor % pipeline`, and trains the
    data share `r // (tensor * pipeline)`; so the processes of one copy are neighbours.

    The copies of a part shard it among themselves with `sharded`: between steps, weights and optimizer
    state are always sharded then. With `tensor`, the processes of a tensor group split the layers of one
    stage. Process p of P in a pipeline has the stages p, P + p, 2 P + p and so on; with one stage each, a
    stage keeps at most as many microbatches in memory as stages follow it.

    Args:
        data: number of copies of the network, each trained on its share of the data.
        tensor: number of workers over which the linear layers of a copy are sharded.
        sharded: state that is sharded over the data-parallel copies. true: weights, gradients and optimizer
            state (ZeRO-3); gradients: gradients and optimizer state (ZeRO-2), with whole weights during a
            step; optimizer: optimizer state (ZeRO-1), with whole weights and gradients during a step, and one
            reduction of gradients for all `microbatches`. With `mesh.pipeline`, all three values act as
            `optimizer`. Between steps, weights are always sharded.
        shard_size: with `sharded`: size of a shard group. Each group of neighbouring copies holds the whole
            state. Default: all copies.
        pipeline: number of workers that compute the pipeline stages of a copy, one after another. A stage is
            a group of consecutive layers.
        microbatches: number of parts of each batch, which move through the stages one after another; default
            four times `pipeline`.
        schedule: with `mesh.pipeline`: the pipeline schedule. 1f1b: each stage computes backward passes as
            early as possible, which takes less memory and needs at least as many `microbatches` as stages.
            gpipe: backward passes come after all forward passes. interleaved_1f1b and looped_bfs: the same
            two with several stages per worker. Workers then idle less, but send more and need more memory.
            interleaved_1f1b computes `microbatches` in rounds of equal size, so use a multiple of
            `mesh.pipeline`.
        stages: with `mesh.pipeline`: names of the modules at which the second and all later stages begin.
            Default: the cuts that minimize the operations of the largest stage, counted on a dummy batch.
        stages_per_rank: with interleaved_1f1b and looped_bfs: number of stages per worker, which has every
            P-th stage. Default: the number that `stages` implies, else 2.

    Raises:
        ConfigError: a number below 1, a `shard_size` that does not divide `data`, or a pipeline with an
            unknown schedule, with an unsupported number of microbatches or stages, or with the wrong number
            of stage names.
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
                f"shard_size {self.shard_size} does not divide the {self.data} data shares of the mesh",
                why="each shard must have the same number of copies",
                fix=f"set shard_size to a divisor of {self.data}",
            )
        if self.pipeline > 1:
            self._check_pipeline()

    def _check_pipeline(self) -> None:
        if self.schedule not in get_args(PipelineSchedule):
            raise ConfigError(
                f"unknown pipeline schedule {self.schedule!r}",
                why="schedules that split the backward pass lose gradients of tensors that no stage sends",
                fix=f"use {', '.join(get_args(PipelineSchedule))}",
            )
        if (self.per_rank > 1) != (self.schedule in INTERLEAVED):
            several = self.per_rank > 1
            raise ConfigError(
                f"schedule {self.schedule} does not support stages_per_rank {self.per_rank}",
                why=f"{self.schedule} has {'one stage' if several else 'several stages'} in each process",
                fix=f"use {' or '.join(INTERLEAVED) if several else '2 or more, or 1f1b or gpipe'}",
            )
        self._check_parts()
        if self.stages and len(self.stages) != self.stage_count - 1:
            raise ConfigError(
                f"stages has {len(self.stages)} names for a pipeline of {self.pipeline}"
                + f" with {self.per_rank} stages each" * (self.per_rank > 1),
                why="stages names the module with which each stage but the first begins",
                fix=f"give {self.stage_count - 1}",
            )

    def _check_parts(self) -> None:
        if self.schedule == "1f1b" and self.parts < self.pipeline:
            raise ConfigError(
                f"{self.parts} microbatches are too few for {self.pipeline} stages in the schedule 1f1b",
                why="each stage needs a microbatch to work on",
                fix=f"use {self.pipeline} or more, better {4 * self.pipeline}, or the schedule gpipe",
            )
        rounds = max(1, self.parts // self.pipeline)
        if self.schedule == "interleaved_1f1b" and self.parts % rounds:
            raise ConfigError(
                f"{self.parts} microbatches cannot be split into {rounds} rounds of equal size",
                why=f"interleaved_1f1b runs rounds of at least {self.pipeline} microbatches, one per process",
                fix=f"use {rounds * self.pipeline} or {(rounds + 1) * self.pipeline}, or looped_bfs",
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The mesh as settings of `satrap.compatibility`."""
        return {
            "dense.mesh.tensor": self.tensor,
            "dense.mesh.pipeline": self.pipeline,
            "dense.sharded": self.shards > 1 and self.sharded,
            SEVERAL: self.size > 1,
        }

    @property
    def parts(self) -> int:
        """Number of microbatches per batch in a pipeline."""
        return self.microbatches or 4 * self.pipeline

    @property
    def per_rank(self) -> int:
        """Number of stages in each process of a pipeline."""
        if self.stages_per_rank is not None or self.schedule not in INTERLEAVED:
            return self.stages_per_rank or 1
        return (len(self.stages) + 1) // self.pipeline if self.stages else 2

    @property
    def stage_count(self) -> int:
        """Number of stages of a copy."""
        return self.pipeline * self.per_rank

    def numbers(self, process: int) -> range:
        """Return the numbers of the stages of a process of a pipeline."""
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
        """Number of processes over which the weights of a tensor coordinate are sharded."""
        return (self.shard_size or self.data) if self.sharded else 1

    @property
    def regathers(self) -> bool:
        """Whether sharded weights are gathered again for the backward pass."""
        return self.sharded is True and self.pipeline == 1

    @property
    def reduces_once(self) -> bool:
        """Whether sharded gradients are accumulated whole over microbatches, and reduced once."""
        return bool(self.sharded) and (self.sharded == "optimizer" or self.pipeline > 1)

    @property
    def whole(self) -> bool:
        """Whether each process has the whole network."""
        return self.peers == self.shards == 1

    def axes(self, rank: int) -> dict[str, list[int]]:
        """Return the groups of processes that share all coordinates of a rank but one, in order of rank.

        "tensor": the other parts of the same layers. "pipeline": the other stages. "shard": the other parts
        of a sharded layer. "replicate": copies of the same shard. "data": all processes with the same tensor
        coordinate and stage ("shard" times "replicate"). "peers": all processes that train the same batches
        ("tensor" times "pipeline").
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
        groups = {name: [i * self.peers + peer for i in each] for name, each in shares.items()}
        return groups | {name: [share * self.peers + i for i in each] for name, each in peers.items()}

    def __str__(self) -> str:
        parts = [f"{self.data} data"] + [f"{self.tensor} tensor"] * (self.tensor > 1)
        each = f" of {self.per_rank} stages" * (self.per_rank > 1)
        parts += [f"{self.pipeline} pipeline{each}"] * (self.pipeline > 1)
        sharded = f", {_SHARDED[self.sharded]} in {self.shards} parts" if self.shards > 1 else ""
        return f"{' x '.join(parts)} = {self.size} workers{sharded}"
