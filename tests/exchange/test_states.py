import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange.states import joined, spread, state_of, take_state
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Admission, Shard

TABLES = [Table("a", dim=2, optimizer=SGD(lr=0.1)), Table("b", dim=3, optimizer=SGD(lr=0.1))]


def used(times: int) -> Shard:
    shard = Shard(TABLES, admission=Admission(min_count=3))
    for _ in range(times):
        shard.lookup("a", np.arange(5, dtype=np.uint64))
        shard.update("a", np.arange(5, dtype=np.uint64), np.ones((5, 2), np.float32))
    return shard


def test_as_many_stores_take_all() -> None:
    states = [state_of(used(1)), state_of(used(2))]
    for own, back in zip(states, spread(joined(states), 2), strict=True):
        assert own.keys() == back.keys()
        assert all(np.array_equal(own[name], back[name]) for name in own)
    [back] = spread(states[0], 1)
    assert back.keys() == states[0].keys()


@pytest.mark.parametrize("shards", [1, 3])
def test_another_number_takes_the_counters(shards: int) -> None:
    states = [state_of(used(1)), state_of(used(2))]
    parts = spread(joined(states), shards)
    assert len(parts) == shards
    for part in parts:
        assert set(part) == {"0.counts", "1.counts"}
        assert part["0.counts"][0] == 2
        fresh = used(0)
        take_state(fresh, part)
        assert fresh.groups[0].updates == 2


def test_a_state_of_other_tables_is_refused() -> None:
    with pytest.raises(StoreError, match="the state of group 0 does not fit"):
        take_state(used(0), {"0.counts": np.array([1])})
