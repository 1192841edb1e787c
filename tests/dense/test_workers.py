"""A worker alone needs nobody."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.dense import Workers
from satrap.errors import ExchangeError


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
    assert np.isclose(workers.size, 1)
    assert workers.data is workers


def test_a_worker_alone_does_not_wait_for_what_nobody_posts() -> None:
    with pytest.raises(ExchangeError, match="nobody posts parts"):
        Workers().posted("parts")
