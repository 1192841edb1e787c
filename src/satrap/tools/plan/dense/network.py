"""Inputs of a plan for the dense network, and its result for one mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.dense import MakeOptimizer, Mesh
from satrap.dense.comm.workers import Compression
from satrap.tools.plan.dense.inputs import Inputs
from satrap.tools.plan.dense.live import Live

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "rows")
"""Kinds of memory of a process. buffers: for sums, gathered weights and sent tensors."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A network and its training options.

    Args:
        make: creates the network; called with fake tensors.
        inputs: a batch of one worker.
        optimizer: makes the optimizer.
        loss: (logits, batch) -> mean loss.
        precision: number format of its arithmetic, see `TrainingOptions`.
        microbatches: sequential parts of a batch; for a pipeline, `Mesh` has their number.
        checkpoint_activations: whether activations are recomputed.
        number_bytes: bytes of a gradient number on the wire between replicas, default 4.
        compression: of gradients between replicas, default none.
        offload: location of the optimizer, see `satrap.dense.offloaded`: "cpu", "disk", or "" for the device.
        weights_off: whether weights and gradients are also there, see `satrap.dense.offload_weights`.
    """

    make: Callable[[], nn.Module]
    inputs: Inputs
    optimizer: MakeOptimizer
    loss: Callable[[Tensor, EmbeddedBatch], Tensor]
    precision: str = "float32"
    microbatches: int = 1
    checkpoint_activations: bool = False
    number_bytes: float = 4.0
    compression: Compression | None = None
    offload: str = ""
    weights_off: bool = False


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of devices.

    Args:
        flops: floating-point operations per second that the network reaches on one device: the operations of
            a step, `Need.flop`, divided by its measured seconds in one process.
        bandwidth: bytes/s that a process sends and receives at the same time.
    """

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Need:
    """Needs of one process of a mesh, for one step.

    Args:
        mesh: the mesh.
        memory: one of `KINDS` -> bytes, at the moment of a step when their sum is largest.
        sent: purpose -> bytes sent by the process in a step, with ring algorithms.
        stage: the first stage of this process in a pipeline; else 0.
        flop: floating-point operations of the process's matrix products in a step, forward and backward.
    """

    mesh: Mesh
    memory: Mapping[str, int]
    sent: Mapping[str, float] = field(default_factory=dict)
    stage: int = 0
    flop: float = 0.0

    @property
    def peak(self) -> int:
        """Peak memory in bytes."""
        return sum(self.memory.values())

    @property
    def traffic(self) -> float:
        """Bytes sent in a step."""
        return sum(self.sent.values())

    @property
    def bubble(self) -> float:
        """Idle fraction of a step, if all stages take the same time.

        With P processes, v stages in each and m parts, (P - 1) / (v m) of the rest of the step: Narayanan et
        al., "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2, arXiv 2104.04473.
        With "interleaved_1f1b", a number of parts that is not a multiple of P takes longer.
        """
        idle = self.mesh.pipeline - 1
        return idle / (self.mesh.per_rank * self.mesh.parts + idle)

    def seconds(self, speed: Speed) -> float:
        """Return the seconds of a step if all stages take the same time and sending overlaps with nothing."""
        return self.flop / speed.flops / (1 - self.bubble) + self.traffic / speed.bandwidth

    def to_dict(self) -> dict[str, Any]:
        """Return the needs as plain data: bytes, operations, and the idle fraction."""
        return {
            "memory": {kind: self.memory.get(kind, 0) for kind in KINDS} | {"peak": self.peak},
            "sent": {purpose: round(count) for purpose, count in self.sent.items()},
            "sent_bytes": round(self.traffic),
            "bubble": self.bubble,
            "stage": self.stage,
            "flop": self.flop,
        }


@dataclass(frozen=True, slots=True)
class OptimizerCosts:
    """Bytes that an optimizer takes per number of the weights.

    Args:
        state: bytes of its state.
        beside: temporary bytes of a step, for each number that it updates at a time.
    """

    state: float
    beside: float

    @classmethod
    def of(cls, make: MakeOptimizer) -> OptimizerCosts:
        """Measure an optimizer on a few weights; it must be elementwise."""
        weight = nn.Parameter(torch.zeros(4096))
        optimizer = make([weight])
        for _ in range(2):
            weight.grad = torch.ones(4096)
            live = Live()
            state = [t for entry in optimizer.state.values() for t in entry.values()]
            live.know([weight, weight.grad, *(t for t in state if isinstance(t, Tensor))])
            with live:
                optimizer.step()
        moments = [t for t in optimizer.state[weight].values() if isinstance(t, Tensor) and t.ndim]
        temporary = sum(live.most.values())
        return cls(sum(t.numel() * t.element_size() for t in moments) / 4096, round(temporary / 4096))

    def away(self, offload: str) -> OptimizerCosts:
        """Return the bytes that remain on the device, or in memory, if the optimizer is offloaded."""
        if offload == "disk":  # the state of one parameter at a time is in memory
            return OptimizerCosts(0.0, self.beside + self.state)
        return OptimizerCosts(0.0, 0.0) if offload else self


def all_reduce(count: float, size: int) -> float:
    """Return the bytes that each of `size` processes sends to all-reduce `count` bytes in a ring."""
    return 2 * (size - 1) / size * count


def largest_layer(model: nn.Module) -> int:
    """Return the bytes of the module with the most direct weights, which must exist whole at some time."""
    return max(sum(map(size_of, layer.parameters(recurse=False))) for layer in model.modules())


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's data."""
    return tensor.numel() * tensor.element_size()
