"""The processes that train together, seen from one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from satrap.dense.mesh import Mesh
from satrap.errors import ExchangeError


class Compression:
    """How a group compresses gradients before it averages them, see `satrap.dense.compressed`.

    Args:
        kind: "powersgd" or "sign".
        rank: of the products of "powersgd".
    """

    def __init__(self, kind: str, rank: int = 4) -> None:
        self.kind, self.rank = kind, rank
        self._whole = self._left = 0.0

    def note(self, whole: float, left: float) -> None:
        """Note the sum of squares of gradients, and of what was left out of them."""
        self._whole, self._left = self._whole + whole, self._left + left

    @property
    def error(self) -> float | None:
        """The relative root-mean-square error, None if nothing but zeros was looked at."""
        return (self._left / self._whole) ** 0.5 if self._whole else None


class Group:
    """Processes that compute something together. A process alone is a group, too; all it does is trivial.

    Every method is called by all processes of the group, in the same order, and raises `ExchangeError` if one
    of them does not take part in time.

    Attributes:
        rank: number of this process in the group, 0..size - 1.
        size: number of processes in the group.
        compression: of the gradients that copies of the network average; None: they send them all.
    """

    rank, size = 0, 1
    compression: Compression | None = None

    def watched(self, stage: str) -> AbstractContextManager[None]:
        """Return a block in which the loss of another process is an `ExchangeError`, whoever notices it."""
        return nullcontext()

    @property
    def rounding(self) -> float | None:
        """Relative root-mean-square error of the numbers that this process sends for `sum`; None: unknown."""
        return None

    def sum(self, tensor: Tensor, *, exact: int | None = None) -> None:
        """Replace a tensor by the sum over the group: the same bits on each process.

        Args:
            tensor: float32[n], contiguous, if `exact` is given.
            exact: how many numbers at its beginning keep their bits; the others may be rounded to the number
                format of the group. Without it, nothing is rounded.
        """

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all processes, [size, ...], in order of rank; all have the same shape."""
        return tensor[None]

    def count(self, values: Sequence[float]) -> list[float]:
        """Return the sums of a few numbers, in float64; one other thread may call it during `sum`."""
        return list(values)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give every tensor the values it has on rank 0."""

    def share(self, data: bytes) -> bytes:
        """Return the bytes given by rank 0; bytes given by others are ignored."""
        return data

    def gather(self, data: bytes) -> list[bytes]:
        """Return, on rank 0, the bytes of each process, in order of rank; elsewhere an empty list."""
        return [data]


class Workers(Group):
    """All processes that train one network. This one is alone; `ConnectedWorkers` are several.

    ```python
    workers.data.sum(gradients, exact=0)         # over all copies of this part of the network
    workers.solo("saving", lambda: save(...))    # process 0 works, the others wait for it
    ```

    Every method is called by all workers, in the same order. One that has not shown a sign of life for the
    deadline, or the loss of the process that keeps the meeting place, is an `ExchangeError`.

    `workers.rank` is the number of the process: process 0 saves and reports, and each has its own random
    generators. `workers.data.rank` says which share of the data the process reads. They are equal as long as
    no layer is divided, see `Mesh`.

    Attributes:
        mesh: which parts of the network the processes have.
    """

    mesh = Mesh()

    @property
    def data(self) -> Group:
        """The processes that hold the same part of the network and train on different batches.

        Its rank and size decide which batches are read, what a gradient's share in the mean is, and under
        which number shards know this worker. Processes with equal `data.rank` read the same batches.
        """
        return self

    @property
    def tensor(self) -> Group:
        """The processes that train the same batches and hold the other parts of each layer."""
        return Group()

    @property
    def pipeline(self) -> Group:
        """The processes that train the same batches and hold the other stages; the rank is the stage."""
        return Group()

    @property
    def peers(self) -> Group:
        """The processes that train the same batches, and make up one copy of the network."""
        return Group()

    @property
    def aside(self) -> Group:
        """All processes, for one thread beside the one that trains; only if the network is in parts."""
        return self

    @property
    def feed(self) -> Group:
        """The same for another thread."""
        return self

    def meet(self, stage: str, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait until all workers are here, for as long as they are alive.

        Args:
            stage: what the workers wait for, for errors; another thread must use another name.
            meanwhile: called again and again while waiting.
        """

    def called(self, stage: str) -> bool:
        """Return whether another worker is waiting for this one to `meet`; this one may ask alone."""
        return False

    def post(self, key: str, data: bytes) -> None:
        """Leave a few bytes for the others under a new key; this one may do it alone, from any thread."""

    def posted(self, key: str, *, readers: int = 1) -> bytes:
        """Wait for what another worker posts, as long as all are alive; from any thread.

        Once so many `readers` have it, it is forgotten; each may read it once.

        Raises:
            ExchangeError: another worker is lost, or there is none that could post.
        """
        raise ExchangeError(f"nobody posts {key}", why="this worker trains alone")

    def solo(self, stage: str, work: Callable[[], object]) -> None:
        """Do something in process 0 only; the others wait until it is done."""
        if self.rank == 0:
            work()
        self.meet(stage)

    def close(self) -> None:
        """Leave the other workers."""
