"""A worker alone needs nobody."""

from __future__ import annotations

import time

import pytest
import torch

from satrap.dense import Workers
from satrap.dense.comm.workers import Compression
from satrap.errors import ExchangeError
from tests.dense.threads import together


def test_a_worker_alone_does_everything_at_once() -> None:
    workers = Workers()
    tensor = torch.arange(3.0)
    workers.sum(tensor)
    workers.broadcast([tensor])
    workers.meet("nothing")
    said: list[str] = []
    workers.solo("something", lambda: said.append("done"))
    assert (tensor.tolist(), said) == ([0, 1, 2], ["done"])
    assert (workers.count([2.0]), workers.share(b"a"), workers.gather(b"b")) == ([2.0], b"a", [b"b"])
    others = (workers.data, workers.tensor, workers.pipeline, workers.peers)
    assert [(group.rank, group.size) for group in others] == [(0, 1)] * 4
    assert workers.data is workers
    assert (workers.rounding, workers.compression, workers.called("nothing")) == (None, None, False)
    with workers.watched("nothing"):
        pass


def test_a_worker_alone_does_not_wait_for_what_nobody_posts() -> None:
    with pytest.raises(ExchangeError, match="no worker can post parts"):
        Workers().posted("parts")


def test_the_others_wait_until_process_0_has_done_its_work() -> None:
    done: list[int] = []

    def work(workers: Workers) -> list[int]:
        workers.solo("saving", lambda: time.sleep(0.05) or done.append(workers.rank))
        return list(done)

    assert together(3, work) == [[0]] * 3


def test_compression_tells_what_it_has_left_out() -> None:
    compression = Compression()
    assert (compression.rank, compression.error) == (4, None)
    compression.note(0.0, 0.0)
    assert compression.error is None
    compression.note(3.0, 0.25)
    compression.note(1.0, 0.75)
    assert compression.error == 0.5
