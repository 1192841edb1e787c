from __future__ import annotations

import pytest

from satrap.errors import ConfigError
from satrap.exchange import LocalExchange
from satrap.exchange.collective import Alone, CollectiveExchange
from satrap.exchange.local_lookahead import LocalLookahead
from satrap.exchange.lookahead import with_lookahead
from satrap.store import Shard
from tests.contract.parties import TABLES, connect, threads


def test_who_can_look_ahead() -> None:
    with threads(1) as [shard]:
        for arguments in ({"rank": 0, "world": 2}, {"mode": "sync"}):
            exchange = connect([shard.address], **arguments)
            with pytest.raises(ConfigError, match="one worker"):
                with_lookahead(exchange)
            exchange.close()
    store = Shard(TABLES)
    found = with_lookahead(LocalExchange(store))
    assert isinstance(found, LocalLookahead)
    assert found.shard is store
    found.close()
    collective = CollectiveExchange(Alone(), TABLES)
    assert with_lookahead(collective) is collective
    collective.close()
