"""The processes that train together, as seen from one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

from torch import Tensor

from satrap.errors import ExchangeError
from satrap.settings.mesh import Mesh


class Compression:
    """How a group compresses gradients before averaging, see `satrap.dense.comm.compressed_gradients`.

    Args:
        rank: rank of the products of "powersgd".
    """

    def __init__(self, rank: int = 4) -> None:
        self.rank = rank
        self._whole = self._left = 0.0

    def note(self, whole: float, left: float) -> None:
        """Add the sum of squares of gradients, and of their omitted part."""
        self._whole, self._left = self._whole + whole, self._left + left

    @property
    def error(self) -> float | None:
        """The relative root-mean-square error, None if only zeros were measured."""
        return (self._left / self._whole) ** 0.5 if self._whole else None


class WorkerGroup:
    """Processes that compute something together. A single process is a group as well, with trivial methods.

    Every method is called by all processes of the group, in the same order, and raises `ExchangeError` if one
    of them does not take part in time.

    Attributes:
        rank: number of this process in the group, 0..size - 1.
        size: number of processes in the group.
        compression: of the gradients that copies of the network average; None: they send whole gradients.
    """

    rank, size = 0, 1
    compression: Compression | None = None

    def watched(self, stage: str) -> AbstractContextManager[None]:
        """Return a context in which the loss of another process is an `ExchangeError`."""
        return nullcontext()

    @property
    def rounding(self) -> float | None:
        """Relative root-mean-square error of the numbers that this process sends for `sum`; None: unknown."""
        return None

    def sum(self, tensor: Tensor, *, exact: int | None = None) -> None:
        """All-reduce a tensor: replace it by its sum over the group, with the same bits on each process.

        Args:
            tensor: float32[n], contiguous, if `exact` is given.
            exact: this many numbers at its beginning keep their bits; the others may be rounded to the number
                format of the group. Default: nothing is rounded.
        """

    def count(self, values: Sequence[float]) -> list[float]:
        """Return the sums of a few numbers, in float64; one other thread may call it during `sum`."""
        return list(values)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of each tensor from rank 0 to all ranks."""

    def share(self, data: bytes) -> bytes:
        """Return the bytes given by rank 0; bytes given by other ranks are ignored."""
        return data

    def gather(self, data: bytes) -> list[bytes]:
        """Return, on rank 0, the bytes of each process, in order of rank; elsewhere an empty list."""
        return [data]


class Workers(WorkerGroup):
    """All processes that train one network. This class is a single process; `ConnectedWorkers` are several.

    ```python
    workers.data.sum(gradients, exact=0)         # over all copies of this part of the network
    workers.solo("saving", lambda: save(...))    # process 0 works, the others wait for it
    ```

    Every method is called by all workers, in the same order. It raises an `ExchangeError` if a worker has
    sent no heartbeat for the deadline, or if the process that holds the rendezvous store is lost.

    `workers.rank` is the number of the process: process 0 saves and reports, and each has its own random
    generators. `workers.data.rank` is the number of the data share that the process reads. The two are equal
    as long as no layer is sharded, see `Mesh`.

    Attributes:
        mesh: distribution of the network over the processes.
    """

    mesh = Mesh()
    _axes: Mapping[str, WorkerGroup] = MappingProxyType({})

    @property
    def data(self) -> WorkerGroup:
        """The processes that hold the same part of the network and train on different batches.

        Its rank and size decide which batches are read, the weight of a gradient in the mean, and the number
        by which shards identify this worker. Processes with equal `data.rank` read the same batches.
        """
        return self._axes.get("data", self)

    @property
    def tensor(self) -> WorkerGroup:
        """The processes that train the same batches and hold the other parts of each layer."""
        return self._axes.get("tensor", WorkerGroup())

    @property
    def pipeline(self) -> WorkerGroup:
        """The processes that train the same batches and hold the other stages; the rank is the stage."""
        return self._axes.get("pipeline", WorkerGroup())

    @property
    def peers(self) -> WorkerGroup:
        """The processes that train the same batches; together they hold one copy of the network."""
        return self._axes.get("peers", self.tensor)

    def meet(self, stage: str, *, meanwhile: Callable[[], object] | None = None) -> None:
        """A barrier: wait until all workers have called it, for as long as they are alive.

        Args:
            stage: name of the barrier, for errors; another thread must use another name.
            meanwhile: called repeatedly while waiting.
        """

    def called(self, stage: str) -> bool:
        """Return whether another worker is waiting for this one in `meet`; not a collective call."""
        return False

    def post(self, key: str, data: bytes) -> None:
        """Publish a few bytes for the others under a new key; not a collective call, from any thread."""

    def posted(self, key: str, *, readers: int = 1) -> bytes:
        """Wait for the bytes that another worker posts, as long as all are alive; from any thread.

        They are deleted once `readers` workers have read them, each at most once.

        Raises:
            ExchangeError: a worker is lost, or there is no other worker.
        """
        raise ExchangeError(f"no worker can post {key}", why="there is only one worker")

    def solo(self, stage: str, work: Callable[[], object]) -> None:
        """Do something in process 0 only; the others wait until it is done."""
        if self.rank == 0:
            work()
        self.meet(stage)

    def close(self) -> None:
        """Disconnect from the other workers."""
