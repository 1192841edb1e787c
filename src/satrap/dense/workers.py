"""What the workers of a run do together, as one of them sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


class Workers:
    """A worker alone: everything done together is done at once. The base of `ConnectedWorkers`.

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
        """Return the sums of a few numbers, in float64; may be called beside `sum`, from one other thread.

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
        """Return the bytes that rank 0 gave; those of the others are not looked at.

        Raises:
            ExchangeError: another worker did not take part in time.
        """
        return data

    def gather(self, data: bytes) -> list[bytes]:
        """Return, on rank 0, what each worker gave, in order of rank; elsewhere an empty list.

        Raises:
            ExchangeError: another worker did not take part in time.
        """
        return [data]

    def meet(self, stage: str, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait until all workers are here, however long it takes, as long as they are alive.

        Args:
            stage: what is waited for, for errors; from another thread, give it another name.
            meanwhile: called again and again while waiting.

        Raises:
            ExchangeError: a worker has not shown a sign of life for the deadline.
        """

    def called(self, stage: str) -> bool:
        """Return whether another worker waits for this one to `meet`.

        Raises:
            ExchangeError: the place where workers meet is lost.
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
        """Part from the others."""
