"""What a plan of the dense network is made from, and what it finds for one mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.dense import MakeOptimizer, Mesh
from satrap.dense.workers import Compression
from satrap.plan.dense.inputs import Inputs
from satrap.plan.dense.live import Live

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "rows")
"""What a process has in memory. buffers: for sums, gathered weights and tensors that are sent."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network and how it is trained.

    Args:
        make: returns a new network; called without memory for its weights.
        inputs: a batch of one worker.
        optimizer: makes the optimizer.
        loss: (logits, batch) -> mean loss.
        precision: number format of its arithmetic, see `TrainingOptions`.
        microbatches: parts of a batch that are computed one after another; of a pipeline, its `Mesh` says it.
        checkpoint_activations: whether activations are computed twice.
        number_bytes: of a number of the gradient on its way between whole copies, default 4.
        compression: of gradients between whole copies, default none.
        offload: where the optimizer is, see `satrap.dense.offloaded`: "cpu", "disk" or, on the device, "".
        weights_off: whether weights and gradients are there, too, see `satrap.dense.offload_weights`.
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
    """How fast devices are.

    Args:
        flops: floating-point operations per second that the network reaches on one of them: those of a step,
            `Need.flop`, by the seconds that one process was measured to take for it.
        bandwidth: bytes/s that a process sends, and at the same time receives.
    """

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Need:
    """What one process of a mesh needs, for one step.

    Args:
        mesh: the mesh.
        memory: one of `KINDS` -> bytes, at the moment of a step when their sum is largest.
        sent: purpose -> bytes that the process sends in a step, by ring algorithms.
        stage: of a pipeline, the first that this process has; else 0.
        flop: floating-point operations of the process's matrix products in a step, forward and backward.
    """

    mesh: Mesh
    memory: Mapping[str, int]
    sent: Mapping[str, float] = field(default_factory=dict)
    stage: int = 0
    flop: float = 0.0

    @property
    def peak(self) -> int:
        """Bytes of memory."""
        return sum(self.memory.values())

    @property
    def traffic(self) -> float:
        """Bytes that are sent."""
        return sum(self.sent.values())

    @property
    def bubble(self) -> float:
        """Share of a step for which a process has nothing to do, if all stages take equally long.

        With P processes, v stages in each and m parts, (P - 1) / (v m) of the rest of the step: Narayanan et
        al., "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2, arXiv 2104.04473.
        Parts that are no multiple of P take longer with "interleaved_1f1b".
        """
        idle = self.mesh.pipeline - 1
        return idle / (self.mesh.per_rank * self.mesh.parts + idle)

    def seconds(self, speed: Speed) -> float:
        """Return how long a step takes if all stages take as long as this, and nothing is sent meanwhile."""
        return self.flop / speed.flops / (1 - self.bubble) + self.traffic / speed.bandwidth

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data: bytes, operations, and a share."""
        return {
            "memory": {kind: self.memory.get(kind, 0) for kind in KINDS} | {"peak": self.peak},
            "sent": {purpose: round(count) for purpose, count in self.sent.items()},
            "sent_bytes": round(self.traffic),
            "bubble": self.bubble,
            "stage": self.stage,
            "flop": self.flop,
        }


@dataclass(frozen=True, slots=True)
class Rates:
    """What an optimizer takes for each number of the weights, and beside them in a step.

    Args:
        state: bytes.
        beside: bytes for each number of the weights that it treats at a time.
    """

    state: float
    beside: float

    @classmethod
    def of(cls, make: MakeOptimizer) -> Rates:
        """Try an optimizer out on a few weights: it must treat each number by itself."""
        weight = nn.Parameter(torch.zeros(4096))
        optimizer = make([weight])
        for _ in range(2):
            weight.grad = torch.ones(4096)
            live = Live()
            state = [t for entry in optimizer.state.values() for t in entry.values()]
            live.know([weight, weight.grad, *(t for t in state if isinstance(t, Tensor))])
            with live:
                optimizer.step()
        kept = [t for t in optimizer.state[weight].values() if isinstance(t, Tensor) and t.ndim]
        beside = sum(live.most.values())
        return cls(sum(t.numel() * t.element_size() for t in kept) / 4096, round(beside / 4096))

    def away(self, offload: str) -> Rates:
        """Return what remains of it on the device, or in memory, if the optimizer is elsewhere."""
        if offload == "disk":  # the state of one parameter at a time is in memory
            return Rates(0.0, self.beside + self.state)
        return Rates(0.0, 0.0) if offload else self


def all_reduce(count: float, size: int) -> float:
    """Return the bytes that each of `size` processes sends to sum `count` bytes up, by a ring."""
    return 2 * (size - 1) / size * count


def largest_layer(model: nn.Module) -> int:
    """Return the bytes of the module with the most weights of its own: what must be whole at a time."""
    return max(sum(map(size_of, layer.parameters(recurse=False))) for layer in model.modules())


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's numbers."""
    return tensor.numel() * tensor.element_size()
