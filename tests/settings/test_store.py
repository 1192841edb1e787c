"""A store that is opened from its configuration is the one made with the same arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap.errors import ConfigError
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard, StoreConfig, TableSettings, Tier
from satrap.store.shard import open_store


def test_every_argument_reaches_the_store(tmp_path: Path) -> None:
    tables = [Table("a", dim=8, optimizer=SGD(lr=0.1), initial_scale=0.5)]
    bounds = {
        "seed": 5,
        "memory": 1 << 20,
        "admission": Admission(min_count=2, memory=256),
        "eviction": Eviction("lfu"),
        "tier": Tier(str(tmp_path), 1 << 18),
    }
    opened, made = open_store(StoreConfig(**bounds), tables), Shard(tables, **bounds)  # type: ignore[arg-type]
    ids = np.arange(30_000, dtype=np.uint64)
    for _ in range(3):
        np.testing.assert_array_equal(opened.lookup("a", ids), made.lookup("a", ids))
    assert opened.statistics() == made.statistics()
    assert opened.statistics().tier.rows > 0
    assert opened.seed == 5
    opened.close()
    made.close()


def test_by_default_there_are_no_bounds() -> None:
    store = open_store(StoreConfig(), [Table("a", dim=4, optimizer=SGD(lr=0.1))])
    store.lookup("a", np.arange(100, dtype=np.uint64))
    assert (store.statistics().rows, store.seed) == (100, 1)
    store.close()


def test_one_of_several_shards_has_its_share_of_memory_and_tier(tmp_path: Path) -> None:
    admission, eviction = Admission(min_count=2), Eviction("lfu")
    whole = StoreConfig(5, 1001, admission, eviction, Tier(str(tmp_path), 1 << 20), dtype="bfloat16")
    part = StoreConfig(5, 250, admission, eviction, Tier(str(tmp_path), 1 << 18), dtype="bfloat16")
    assert whole.part(4) == part
    assert StoreConfig().part(4) == StoreConfig()


def test_bounds_of_another_configuration(tmp_path: Path) -> None:
    lru, lfu, strict = Eviction(), Eviction("lfu"), Admission(min_count=2)
    mine = StoreConfig(
        5, 100, strict, lru, Tier(str(tmp_path), 9), 0.5, "float16", {"a": TableSettings(dtype="bfloat16")}
    )
    own = {"a": TableSettings(memory=7, eviction=lfu, dtype="float32"), "b": TableSettings(memory=8)}
    by = StoreConfig(6, 200, None, lfu, None, tables=own)
    assert mine.limited(by) == StoreConfig(
        5,
        200,
        strict,
        lfu,
        None,
        0.5,
        "float16",
        {"a": TableSettings(dtype="bfloat16", memory=7, eviction=lfu), "b": TableSettings(memory=8)},
    )
    assert by.limited(mine).tables["a"] == TableSettings(dtype="float32")


def test_tables_that_do_not_keep_every_row() -> None:
    lru, strict = Eviction(), Admission(min_count=2)
    tables = [
        Table("a", dim=4),
        Table("b", dim=4, eviction=lru),
        Table("c", dim=4, admission=strict),
        Table("d", dim=4, eviction=lru, admission=strict),
    ]
    assert StoreConfig().bounds(tables) == {"b": "eviction", "c": "admission", "d": "eviction"}
    whole = StoreConfig(eviction=lru).bounds([*tables, Table("e", dim=4, eviction=None)])
    assert whole == dict.fromkeys("abcd", "eviction")


def test_settings_of_a_table_as_plain_data() -> None:
    plain = {"optimizer": None, "initial_scale": None, "dtype": None}
    assert TableSettings().to_dict() == plain
    frozen = TableSettings(frozen=True, admission=None)
    assert frozen.to_dict() == {**plain, "frozen": True, "admission": None}
    whole = TableSettings(SGD(lr=0.5), 0.25, "float16", admission=Admission(min_count=3))
    assert TableSettings.of(whole.to_dict()) == whole
    for one in (TableSettings(), frozen, TableSettings(admission=None)):
        assert TableSettings.of(one.to_dict()) == one
    for wrong in ({"optimizer": SGD(lr=1.0)}, {"initial_scale": 0.0}, {"admission": Admission()}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} cannot be combined with frozen: true"):
            TableSettings(frozen=True, **wrong)  # type: ignore[arg-type]
