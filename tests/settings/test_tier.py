import os

import pytest

from satrap.errors import ConfigError
from satrap.optim import Adam
from satrap.schema import Table
from satrap.store import Eviction, Shard, Tier


def test_impossible_settings_are_refused():
    for arguments, what in (
        ({"path": "", "size": 1 << 20}, "needs a path"),
        ({"path": "/tmp", "size": 0}, "must be >= 1 byte"),
    ):
        with pytest.raises(ConfigError, match=what):
            Tier(**arguments)


def test_settings_pass_through_plain_data(tmp_path):
    tier = Tier(tmp_path, 1 << 30)
    assert tier == Tier(**tier.to_dict())
    assert tier.part(1, 4) == Tier(str(tmp_path), 1 << 28)
    assert [Tier("x", 10).part(share, 4).size for share in (1, 3)] == [2, 7]
    assert Tier("x", 1).part(1, 4) == Tier("x", 1)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"eviction": None, "memory": 1 << 20}, "cannot be combined with no eviction"),
        ({"eviction": Eviction("ttl", ttl=5), "memory": 1 << 20}, "cannot be combined with policy ttl"),
        ({"eviction": None, "memory": None}, "needs a memory budget"),
        ({"path": "missing"}, "cannot be used"),
        ({"path": "a\0b"}, "cannot be used"),
    ],
)
def test_a_store_that_cannot_use_it_says_why(tmp_path, arguments, what):
    tier = Tier(tmp_path / arguments.pop("path", "."), 1 << 20)
    arguments = {"memory": 1 << 20, "eviction": Eviction()} | arguments
    with pytest.raises(ConfigError, match=what):
        Shard([Table("a", dim=3)], optimizer=Adam(lr=0.1), tier=tier, **arguments)
    assert os.listdir(tmp_path) == []
