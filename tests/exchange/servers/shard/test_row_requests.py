"""An update is applied whole, or refused before anything is written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from satrap.exchange.lookup import Bags
from satrap.exchange.wire.sections import pack
from satrap.rpc.wire.frames import FAILURE, Header, MessageKind
from tests.exchange.servers.journaled import bench, gradients, hello, refused, text_of


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e300, -1e40, 3e38 * 20])
def test_a_factor_that_would_destroy_rows_is_refused(scale: float) -> None:
    with bench() as shard:
        shard.send(*hello(1))
        shard.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), pack([gradients([0.0] * 4)]))
        refused(shard, MessageKind.UPDATE, pack([gradients([1.0] * 4)]), lr_scale=scale)


def test_a_step_whose_sum_overflows_is_refused_whole() -> None:
    """Each share is finite; the rows of the other group must not take a step without it."""
    with bench() as shard:
        for client in (1, 2):
            shard.send(*hello(client, rank=client - 1, world=2, mode="sync"))
        ids = pack([gradients([0.0] * 4), gradients([0.0] * 8, 1)])
        shard.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), ids)
        before = shard.rows()
        parts = pack([gradients([1.0] * 4), gradients([3e38] * 8, 1)])
        first = shard.send(Header(MessageKind.UPDATE, 1, 1, 2, 2), parts)
        last = shard.send(Header(MessageKind.UPDATE, 1, 2, 1, 1), parts)
        assert first is not None
        assert last is not None
        assert (first.header.kind, last.header.kind) == (MessageKind.UPDATE | 0x80, FAILURE)
        assert "NaN or infinite" in text_of(last)["what"]
        assert shard.rows() == before


@pytest.mark.parametrize("kind", [MessageKind.LOOKUP, MessageKind.PEEK, MessageKind.UPDATE])
def test_a_shard_pools_nothing(kind: MessageKind) -> None:
    bag = Bags(0, np.zeros(2, np.int32), np.array([0, 2], np.int64), None, "sum")
    with bench() as shard:
        shard.send(*hello(1))
        section = replace(gradients([0.0] * 4), bags=[bag])
        refused(shard, kind, pack([replace(section, rows=np.zeros(16, np.uint8))]))
