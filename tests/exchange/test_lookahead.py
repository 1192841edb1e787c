from __future__ import annotations

import pytest

from satrap.errors import ConfigError
from satrap.exchange.collective import Alone, CollectiveExchange
from satrap.exchange.lookahead import with_lookahead
from tests.contract.parties import TABLES, connect, threads


def test_who_can_look_ahead() -> None:
    with threads(1) as [shard]:
        for arguments in ({"rank": 0, "world": 2}, {"mode": "sync"}):
            exchange = connect([shard.address], **arguments)
            with pytest.raises(ConfigError, match="one worker"):
                with_lookahead(exchange)
            exchange.close()
    collective = CollectiveExchange(Alone(), Alone(), TABLES)
    assert with_lookahead(collective) is collective
    collective.close()
