"""The interface of all ways to spread the network over processes and devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.checkpoint.saved_dense import DensePart, SavedTensor
from satrap.dense.comm.workers import Workers
from satrap.dense.compute.precision import LossScale
from satrap.exchange import Exchange, LookupRequest, TableGroup
from satrap.schema import Table

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step; equal on all workers that step together.

    Args:
        accepted: False if the loss or a gradient of any worker was not finite; then nothing has changed.
        loss: mean over the samples of all workers.
        stop: whether any worker was requested to stop.
        rescaled: whether the step was rejected and the float16 loss scale reduced, so that the next may
            succeed.
    """

    accepted: bool
    loss: float
    stop: bool
    rescaled: bool = False


class PendingStep:
    """A step whose gradients this worker has computed, and about which the workers may not agree yet.

    Args:
        own: whether this worker accepts it: its loss and all of its gradients are finite.
        finish: sums gradients and verdicts over the workers, takes the optimizer step if all accept it, and
            returns the result.

    Attributes:
        own: of the arguments.
    """

    def __init__(self, own: bool, finish: Callable[[], StepResult]) -> None:
        self.own, self._finish = own, finish
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Take the step, and return its result; further calls return the same. All workers call it."""
        if self._result is None:
            self._result = self._finish()
        return self._result


@dataclass(frozen=True, slots=True)
class DenseState:
    """The state of a trained network, to be restored.

    Args:
        weights: name -> tensor, as in the `state_dict` of the whole network, or a saved tensor.
            Tensors of the optimizer may be saved tensors as well.
        optimizer: `state_dict` of its optimizer, with base learning rates and with parameters numbered as in
            the whole network; empty if it has none.
        partial: weights that are missing keep their values, and the optimizer keeps its settings.
    """

    weights: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False


def in_memory(value: Any) -> Any:
    """Return a value; load it if it is a saved tensor."""
    return value.whole() if isinstance(value, SavedTensor) else value


LossOfBatch = Callable[[Tensor, EmbeddedBatch], Tensor]
"""(logits, batch) -> mean loss over its samples."""


class BatchParts(Protocol):
    """The microbatches of a batch, see `satrap.train.step.split_batch.MicroBatches`."""

    sizes: list[int]
    shares: list[float]
    rows: Sequence[Tensor]

    def __len__(self) -> int:
        """Return the number of microbatches."""

    def __getitem__(self, number: int) -> EmbeddedBatch:
        """Return a microbatch."""


class Pipeline(Protocol):
    """Forward and backward over microbatches, for networks that no single process holds completely.

    All processes of the pipeline make the same calls with the same batches.
    """

    @property
    def count(self) -> int:
        """Return the number of microbatches per batch."""

    def try_out(self, batch: EmbeddedBatch) -> None:
        """Run a dummy batch once, before anything else.

        Raises:
            ConfigError: the stages do not compute the same as the network, or cannot send their activations.
        """

    def run(self, parts: BatchParts, loss: LossOfBatch, share: float) -> tuple[Tensor, Tensor]:
        """Compute the logits and the loss of a batch, and its gradients times `share`.

        Args:
            parts: microbatches of the batch.
            loss: mean loss of a microbatch.
            share: see `DenseBackend.backward`.

        Returns:
            (logits, float32[size, ...], and the mean loss), in each process.
        """

    def scores(self, parts: BatchParts) -> Tensor:
        """Return logits, float32[size, ...], in each process."""


class DenseBackend(ABC):
    """How the network takes its steps, and which process holds which of its weights.

    Each worker creates a backend for its network. The loop computes the loss and leaves the rest to the
    backend. `DataParallelBackend` holds the whole network in each process; `RemoteStep` keeps the weights in
    the store. A new backend keeps these guarantees, which `tests/dense/backends/test_protocol.py` checks for
    all:

    - A step changes the weights of all `partners`, by the mean gradient over the samples of all of them, or
      of none, because a loss or a gradient was not finite. A partner without a batch takes part.
    - After `begin` and `settle`, all workers score with the same network.
    - Together, the `part`s of all processes hold each element of the weights, and of the optimizer state,
      exactly once. `restore` takes this process's elements from the whole; `restore_own` takes the rest.
    - Weights that are rows are in `tables`; the loop looks up `requests` with each batch, and pushes their
      gradients.

    Attributes:
        trainable: whether it was created with an optimizer.
        whole: whether the `part` of process 0 is the whole network.
        collective: whether each forward pass is a collective of all workers, including workers without a
            batch.
        partners: the workers with which this one takes each step.
        scale: the loss scale; a checkpoint stores it.
        pipeline: runs forward and backward; None: the loop calls the network, and `backward`.
        requests: rows that are weights, after `attach`; to be looked up with each batch.
    """

    trainable: bool
    whole: bool = True
    collective: bool = False
    partners: Workers
    scale: LossScale
    pipeline: Pipeline | None = None
    requests: Sequence[LookupRequest] = ()

    def tables(self, widths: Collection[int]) -> list[Table]:
        """Return the tables it needs in the store, where other tables have these row widths."""
        return []

    def attach(self, groups: Sequence[TableGroup]) -> None:  # noqa: B027 - by default, no weight is a row
        """Find `tables` among the exchange's groups."""

    def seed(self, exchange: Exchange) -> None:  # noqa: B027 - by default, no weight is a row
        """Write the present weights into the store, where `tables` hold them; in process 0 only."""

    def pull(self, rows: Sequence[Any]) -> None:  # noqa: B027 - by default, no weight is a row
        """Apply the rows that answer `requests`."""

    def push(self) -> list[Rows]:
        """Return the gradients for `requests`, after an accepted `step`."""
        return []

    @abstractmethod
    def begin(self) -> None:
        """Give all workers the same network, before the first step."""

    @abstractmethod
    def settle(self, exchange: Exchange) -> None:
        """Bring the network of each worker up to date; no step is in flight, and all updates are applied."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the gradients and losses of `backward`, because no step will use them."""

    @abstractmethod
    def backward(self, loss: Tensor, share: float, *, last: bool = True) -> None:
        """Compute the gradients of a batch or microbatch; they and its loss are added to the next `step`.

        If the backend is `collective`, a worker without a batch passes the loss of a dummy batch, with share
        0.

        Args:
            loss: mean loss of the samples.
            share: factor on it that makes the mean over workers the mean over all samples; for a microbatch
                times its share in the mean loss of the batch.
            last: whether `step` follows; False: another microbatch.
        """

    @abstractmethod
    def step(self, rows: Sequence[Tensor], lr_scale: float, *, stop: bool = False) -> PendingStep:
        """Begin the optimizer step for the gradients of `backward`, if any.

        On return the gradients of `rows` are final for this worker, so they may be sent while the workers sum
        the gradients of the network.

        Args:
            rows: embedding leaves; their gradients are included in the check and in the clipping norm.
            lr_scale: factor on the optimizer's learning rates.
            stop: whether this worker was requested to stop.
        """

    @abstractmethod
    def part(self) -> DensePart:
        """Return this process's part of a checkpoint, not copied."""

    @abstractmethod
    def restore(self, whole: DenseState) -> None:
        """Restore a saved network; each process gets all of it, or can read all of it.

        A backend without an optimizer ignores the optimizer state.
        """

    @abstractmethod
    def own(self) -> dict[str, Tensor]:
        """Return copies of this process's own tensors that `part` omits, such as batch statistics."""

    @abstractmethod
    def restore_own(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore tensors that `own` returned."""
