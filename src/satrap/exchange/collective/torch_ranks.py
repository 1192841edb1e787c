"""Ranks that `torch.distributed` joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from satrap.errors import ExchangeError
from satrap.exchange.collective.ranks import Bytes


class TorchRanks:
    """The processes of `torch.distributed`, which must be initialized; see `Ranks`.

    Making one is a collective call, too: all processes make theirs, in the same order.

    Args:
        deadline: seconds until a process that does not take part counts as lost, default 30.
        silent: asked for the ranks that seem to be dead once one is lost, see `ConnectedWorkers.silent`.
    """

    def __init__(self, deadline: float = 30.0, silent: Callable[[], list[int]] = list) -> None:
        self._silent, self._deadline = silent, deadline
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadline))

    def all_to_all(self, given: Bytes, lengths: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """See `Ranks.all_to_all`."""
        sent, received = torch.from_numpy(given), torch.empty(sum(sizes), dtype=torch.uint8)
        try:
            dist.all_to_all_single(received, sent, list(sizes), list(lengths), group=self._group)
        except RuntimeError as error:  # closed connections, time-outs
            raise ExchangeError(
                f"rank {self.rank} lost {self._named()}: {str(error).splitlines()[0][-160:]}",
                where="all-to-all of ids, rows or gradients",
                why="the ranks hold the tables together: without one of them, its rows are gone",
                fix="look at the other ranks' logs, and resume from the newest snapshot",
            ) from error
        return np.split(received.numpy(), np.cumsum(sizes)[:-1])

    def _named(self) -> str:
        found = self._silent()
        return f"rank {', '.join(map(str, found))}" if found else "another rank"

    def another(self) -> TorchRanks:
        """See `Ranks.another`; a collective call."""
        return TorchRanks(self._deadline, self._silent)

    def close(self) -> None:
        """See `Ranks.close`."""
        dist.destroy_process_group(self._group)
