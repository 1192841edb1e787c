"""Settings of a table beside those of its store."""

import pytest

from satrap.optim import SGD
from satrap.retention import Admission, Eviction, own_to_dict
from satrap.schema import Table
from satrap.store import StoreConfig, TableSettings

LRU, STRICT = Eviction("lru"), Admission(min_count=3)


@pytest.mark.parametrize(
    ("own", "admission", "eviction"),
    [
        ({}, STRICT, LRU),
        ({"admission": None, "eviction": None}, None, None),
        ({"admission": Admission()}, None, LRU),
        ({"admission": Admission(2), "eviction": Eviction("ttl", 5)}, Admission(2), Eviction("ttl", 5)),
        ({"frozen": True}, None, LRU),
    ],
)
def test_a_table_has_its_own_settings_or_those_of_the_store(own, admission, eviction):
    table = Table("a", dim=4, **own)
    assert (table.admission_or(STRICT), table.eviction_or(LRU)) == (admission, eviction)
    assert table.admission_or(None) == (None if "admission" not in own else admission)
    bounds = {"a": "eviction"} if eviction else {"a": "admission"} if admission else {}
    assert StoreConfig(admission=STRICT, eviction=LRU).bounds([table]) == bounds


def test_one_of_several_shards_has_its_share_of_a_tables_memory():
    table = Table("a", dim=4, optimizer=SGD(lr=1), memory=1001)
    assert table.part(4) == Table("a", dim=4, optimizer=SGD(lr=1), memory=250)
    assert Table("a", dim=4).part(4) == Table("a", dim=4)


def test_as_plain_data_a_setting_says_what_it_is():
    assert own_to_dict("store") == "store"
    assert own_to_dict(None) is None
    assert own_to_dict(Eviction("ttl", 7)) == {"policy": "ttl", "ttl": 7}


@pytest.mark.parametrize("admission", ["store", None, STRICT])
def test_a_checkpoint_keeps_the_admission_of_a_table_and_no_budget(admission):
    own = TableSettings(memory=1000, admission=admission, eviction=LRU)
    assert TableSettings.of(own.to_dict()) == TableSettings(admission=admission)
