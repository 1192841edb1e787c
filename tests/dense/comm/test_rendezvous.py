"""Processes agree on a name for their attempt, whatever earlier attempts have left in the store."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from satrap.dense.comm.rendezvous import attempt
from satrap.errors import ExchangeError


def together(stores: Sequence[Any]) -> list[str]:
    """What each process gets, one store each."""
    with ThreadPoolExecutor(len(stores)) as threads:
        ranks = [threads.submit(attempt, one, rank, len(stores), 20.0) for rank, one in enumerate(stores)]
        return [rank.result() for rank in ranks]


def test_all_get_a_new_name_each_time() -> None:
    host: Any = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[arg-type]
    stores = [
        dist.TCPStore("127.0.0.1", host.port, None, False, wait_for_workers=False)  # type: ignore[arg-type]
        for _ in range(3)
    ]
    names = [together(stores) for _ in range(5)]
    assert all(len(set(name)) == 1 for name in names)
    assert len({name[0] for name in names}) == 5


@pytest.mark.parametrize("left", ["hello/1", "taken/1", "welcome"])
def test_what_an_attempt_that_was_killed_has_left_counts_for_nothing(left: str) -> None:
    store: Any = dist.HashStore()
    for key in ("hello/1", "hello/2", "taken/1", "taken/2", "welcome"):
        if key <= left:
            store.set(key, "old")
    assert len(set(together([store] * 3))) == 1
    assert "old" not in together([store] * 3)


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(ExchangeError, match=r"workers 1, 2 did not join within 0.1 s"):
        attempt(dist.HashStore(), 0, 3, 0.1)
    for size, named in ((2, "worker 1"), (9, "workers 1, 2, 3, 4, 5, 6, 7, 8")):
        with pytest.raises(ExchangeError, match=f"^{named} did not join within 0 s"):
            attempt(dist.HashStore(), 0, size, 0.0)
    with pytest.raises(
        ExchangeError, match=r"^workers 1, 2, 3, 4, 5, 6, 7, 8 and 2 more did not join within 0 s"
    ):
        attempt(dist.HashStore(), 0, 11, 0.0)
    with pytest.raises(ExchangeError, match=r"worker 0 did not join"):
        attempt(dist.HashStore(), 2, 3, 0.1)
