"""The face of every way to spread the network over processes and devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense.precision import LossScale
from satrap.dense.workers import Workers
from satrap.exchange import Exchange, Request, TableGroup
from satrap.schema import Table

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a step; equal on all workers that step together.

    Args:
        accepted: False if loss or a gradient of any worker was not finite; then nothing has changed.
        loss: mean over the samples of all workers.
        stop: whether any worker was asked to stop.
        rescaled: whether the step was refused and the loss scale of float16 fell, so that the next may pass.
    """

    accepted: bool
    loss: float
    stop: bool
    rescaled: bool = False


@dataclass(frozen=True, slots=True)
class DenseState:
    """A trained network to be restored.

    Args:
        weights: name -> tensor, as in the `state_dict` of the whole network, or a saved one, see `Slices`; so
            may be tensors of the optimizer.
        optimizer: `state_dict` of its optimizer, with base learning rates and with parameters numbered as in
            the whole network; empty if it has none.
    """

    weights: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)


class Slices(Protocol):
    """A saved tensor of which nothing is in memory, see `satrap.checkpoint.saved_dense.SavedTensor`."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""

    def read(self, start: Sequence[int], size: Sequence[int]) -> Tensor:
        """Return a slice: so many numbers from a place on, in each dimension."""

    def whole(self) -> Tensor:
        """Return all of it."""


Sliceable = Tensor | Slices


def in_memory(value: Any) -> Any:
    """Return a value, or all of a saved tensor."""
    return value if isinstance(value, Tensor) or not hasattr(value, "whole") else value.whole()


LossOfBatch = Callable[[Tensor, EmbeddedBatch], Tensor]
"""(logits, batch) -> mean loss of its samples."""


class Parts(Protocol):
    """The parts of a batch, see `satrap.train.microbatches.MicroBatches`."""

    @property
    def batches(self) -> Sequence[EmbeddedBatch]:
        """The parts, in order."""

    @property
    def sizes(self) -> Sequence[int]:
        """How many samples of the batch each has; one with 0 has a sample that does not count."""

    def backward(self) -> bool:
        """Carry gradients of the parts on to the rows, and return whether there were any."""


class Pipeline(Protocol):
    """Computes forward and backward passes of batches in parts, since no process has the whole network.

    All processes of the pipeline make the same calls with the same batches.
    """

    @property
    def count(self) -> int:
        """Into how many parts a batch is cut."""

    def try_out(self, batch: EmbeddedBatch) -> None:
        """Look at a batch that stands for nothing, once, before anything else.

        Raises:
            ConfigError: the stages do not compute what the network does, or cannot hand on what they should.
        """

    def run(
        self, parts: Parts, loss: LossOfBatch, weights: Sequence[float], share: float
    ) -> tuple[Tensor, Tensor]:
        """Compute logits, loss and, times `share`, gradients of a batch.

        Args:
            parts: of the batch.
            loss: mean loss of a part.
            weights: what each part counts in the mean over the batch.
            share: see `DenseBackend.step`.

        Returns:
            (logits, float32[size, ...], and the mean loss), in each process.
        """

    def scores(self, parts: Parts) -> Tensor:
        """Return logits, float32[size, ...], in each process."""


class DenseBackend(ABC):
    """How the network takes its steps, and which process holds which of its weights.

    Each worker makes a backend of its network. The loop computes the loss and leaves the rest to the backend.
    `DataParallel` has a whole network in each process; `RemoteStep` has the weights in the store. A new
    backend keeps these promises, which `tests/dense/test_backend.py` checks for all:

    - A step changes the weights of all `partners`, by the mean gradient over the samples of all, or of none,
      because a loss or a gradient was not finite. A partner without a batch takes part.
    - After `begin` and `settle`, all workers score with the same network.
    - What all processes return as `part` holds each number of the weights, and of the optimizer's state,
      exactly once. `restore` takes what this process needs from the whole; `restore_own` the rest.
    - Weights that are rows are in `tables`; the loop pulls `requests` with each batch, and pushes.

    Attributes:
        trainable: whether it was made with an optimizer.
        whole: whether the `part` of process 0 is the whole network.
        collective: whether each forward pass is one of all workers, also of those without a batch.
        partners: the workers with which this one takes each step.
        scale: the factor on its losses; a checkpoint keeps it.
        pipeline: computes the passes; None: the loop calls the network and `step` computes gradients.
        requests: rows that are weights, once it has been attached; to be looked up with each batch.
    """

    trainable: bool
    whole: bool = True
    collective: bool = False
    partners: Workers
    scale: LossScale
    pipeline: Pipeline | None = None
    requests: Sequence[Request] = ()

    def tables(self, widths: Collection[int]) -> list[Table]:
        """Return the tables that it needs in the store, where the other tables have rows of these widths."""
        return []

    def attach(self, groups: Sequence[TableGroup]) -> None:  # noqa: B027 - by default, no weight is a row
        """Find `tables` among the exchange's groups."""

    def seed(self, exchange: Exchange) -> None:  # noqa: B027 - by default, no weight is a row
        """Put the present weights into the store, where `tables` hold them; in process 0 only."""

    def pull(self, rows: Sequence[Any]) -> None:  # noqa: B027 - by default, no weight is a row
        """Take over the answers to `requests`."""

    def push(self) -> list[Rows]:
        """Return the gradients for `requests`, after an accepted `step`."""
        return []

    @abstractmethod
    def begin(self) -> None:
        """Give all workers the same network, before the first step."""

    @abstractmethod
    def settle(self, exchange: Exchange) -> None:
        """Bring the network of each worker up to date; no step is under way, and all updates are applied."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what `accumulate` has added up, because no step will use it."""

    @abstractmethod
    def accumulate(self, loss: Tensor, share: float) -> None:
        """Compute the gradients of one part of a batch; they and its loss are added to those of `step`.

        Args:
            loss: mean loss of the part.
            share: as in `step`, times the part's share in the mean loss of the batch.
        """

    @abstractmethod
    def step(
        self,
        loss: Tensor | None,
        rows: Sequence[Tensor],
        lr_scale: float,
        *,
        share: float = 1.0,
        stop: bool = False,
        finite: Callable[[], bool] | None = None,
        ready: Callable[[bool], None] | None = None,
    ) -> Stepped:
        """Compute gradients and take the optimizer step, unless loss or a gradient is not finite.

        Args:
            loss: mean loss of this worker's batch, or of its last part; None without a batch. If the backend
                is `collective`, it is then that of a blank batch, with share 0.
            rows: embedding leaves; their gradients take part in the check and in the clipping norm.
            lr_scale: factor on the optimizer's learning rates.
            share: factor on the loss that makes the mean over workers the mean over all samples.
            stop: whether this worker was asked to stop.
            finite: returns, after the backward pass, whether the gradients of `rows` are finite; default:
                checked here.
            ready: called once the gradients of `rows` are final, with whether this worker accepts the step,
                or whether all do. So they can be sent while the workers sum the other gradients.
        """

    @abstractmethod
    def part(self) -> DensePart:
        """Return what this process gives to a checkpoint, not copied."""

    @abstractmethod
    def restore(self, whole: DenseState) -> None:
        """Take over a saved network; each process gets all of it, or can read all of it.

        A backend without an optimizer ignores the optimizer's state.
        """

    @abstractmethod
    def own(self) -> dict[str, Tensor]:
        """Return copies of what only this process has and `part` leaves out, such as batch statistics."""

    @abstractmethod
    def restore_own(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `own` returned."""
