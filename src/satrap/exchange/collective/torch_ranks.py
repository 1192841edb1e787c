"""Ranks over `torch.distributed`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from satrap.errors import ExchangeError
from satrap.exchange.collective.ranks import Bytes

STAGE = "all-to-all of ids, rows or gradients"
_LOOK = timedelta(seconds=0.25)


class TorchRanks:
    """The processes of `torch.distributed`, which must be initialized; see `Ranks`.

    The constructor is a collective call as well: all processes call it, in the same order.

    Args:
        deadline: seconds until a process that does not take part counts as lost, default 30.
        silent: returns the ranks that seem to be dead, called once one is lost, see
            `ConnectedWorkers.silent`.
        among: restricts the ranks to these processes, and only they call the constructor; default all.
        watch: returns a function to call now and then while this process waits, which raises an
            `ExchangeError` if another sends no heartbeat, see `ConnectedWorkers.watch`; default: only the
            deadline counts.
    """

    def __init__(
        self,
        deadline: float = 30.0,
        silent: Callable[[], list[int]] = list,
        among: Sequence[int] | None = None,
        watch: Callable[[str], Callable[[], None]] = lambda _: lambda: None,
    ) -> None:
        self._silent, self._deadline, self._among, self._watch = silent, deadline, among, watch
        self._group: Any = dist.new_group(
            None if among is None else list(among),
            backend="gloo",
            timeout=timedelta(seconds=deadline),
            use_local_synchronization=among is not None,
        )
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def all_to_all(self, given: Bytes, lengths: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """See `Ranks.all_to_all`."""
        sent, received = torch.from_numpy(given), torch.empty(sum(sizes), dtype=torch.uint8)
        try:
            work = dist.all_to_all_single(
                received, sent, list(sizes), list(lengths), group=self._group, async_op=True
            )
            self._wait(work)
        except RuntimeError as error:  # closed connections, timeouts
            raise ExchangeError(
                f"rank {self.rank} lost {self._named()}: {str(error).splitlines()[0][-160:]}",
                where=STAGE,
                why="the ranks hold the tables together: without one of them, its rows are lost",
                fix="look at the other ranks' logs, and resume from the newest snapshot",
            ) from error
        return np.split(received.numpy(), np.cumsum(sizes)[:-1])

    def _wait(self, work: Any) -> None:
        look = self._watch(STAGE)
        while not work.is_completed():
            try:
                work.wait(_LOOK)
            except RuntimeError:  # not completed, or failed: then the last line raises the error again
                self._look(look)
        work.wait()

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except ExchangeError:
            # Dropping the last reference to the group would wait for this call, perhaps forever: keep one.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
            raise

    def _named(self) -> str:
        silent = self._silent()
        return f"rank {', '.join(map(str, silent))}" if silent else "another rank"

    def another(self) -> TorchRanks:
        """See `Ranks.another`; a collective call."""
        return TorchRanks(self._deadline, self._silent, self._among, self._watch)

    def close(self) -> None:
        """See `Ranks.close`."""
        # A group of some ranks is named after its ranks, and its name is free again once it is destroyed. A
        # later group of the same name would find the old addresses in the store.
        if self._among is None:
            dist.destroy_process_group(self._group)
            self._group = None  # its threads end with the last reference, see `ConnectedWorkers.close`
