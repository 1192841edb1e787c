"""What the workers of a run do together, as seen by one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


class Workers:
    """A single worker, for which every common operation is trivial. The base of `ConnectedWorkers`.

    ```python
    workers.sum(gradients)                       # all workers, in step
    workers.solo("saving", lambda: save(...))    # rank 0 works, the others wait for it
    ```

    Every method is called by all workers, in the same order.

    Attributes:
        rank: number of this worker, 0..world - 1.
        world: number of workers.
    """

    rank, world = 0, 1

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over all workers: the same bits on each.

        Raises:
            ExchangeError: another worker did not take part in time.
        """

    def count(self, values: Sequence[float]) -> list[float]:
        """Return the sums of a few numbers, in float64; one other thread may call it during `sum`.

        Raises:
            ExchangeError: another worker did not take part in time.
        """
        return list(values)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give every tensor the values it has on rank 0.

        Raises:
            ExchangeError: another worker did not take part in time.
        """

    def share(self, data: bytes) -> bytes:
        """Return the bytes given by rank 0; bytes given by others are ignored.

        Raises:
            ExchangeError: another worker did not take part in time.
        """
        return data

    def gather(self, data: bytes) -> list[bytes]:
        """Return, on rank 0, the bytes of each worker, in order of rank; elsewhere an empty list.

        Raises:
            ExchangeError: another worker did not take part in time.
        """
        return [data]

    def meet(self, stage: str, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait until all workers are here, for as long as they are alive.

        Args:
            stage: what the workers wait for, for errors; another thread must use another name.
            meanwhile: called again and again while waiting.

        Raises:
            ExchangeError: a worker has not shown a sign of life for the deadline.
        """

    def called(self, stage: str) -> bool:
        """Return whether another worker is waiting for this one to `meet`.

        Raises:
            ExchangeError: the process that keeps the meeting place is lost.
        """
        return False

    def solo(self, stage: str, work: Callable[[], object]) -> None:
        """Do something on rank 0 only; the others wait until it is done.

        Raises:
            ExchangeError: a worker has not shown a sign of life for the deadline.
        """
        if self.rank == 0:
            work()
        self.meet(stage)

    def close(self) -> None:
        """Leave the other workers."""
