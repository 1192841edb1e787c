"""The settings of a store other than its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from satrap import compatibility
from satrap.errors import ConfigError
from satrap.optim import Optimizer, from_dict
from satrap.retention import Admission, AsStore, Eviction, check_own, own_to_dict
from satrap.runtime.arguments import Bytes, checked
from satrap.schema import Dtype, Table
from satrap.settings.tier import Tier


@checked()
@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of one table that differ from the store's; default: none.

    Args:
        optimizer: optimizer of the table's rows.
        initial_scale: new rows are drawn uniformly from (-initial_scale, initial_scale).
        dtype: number format of the table's weights.
        rows: file of initial rows, for example pretrained vectors, relative to the recipe: Parquet with
            columns id and weights (lists), or NumPy's .npz with arrays id and weights. Ids are as in the
            data.
        frozen: whether the table has only the rows of this file, which never change. Other ids read zeros.
        memory: the table's own part of `embedding.memory`, for example 1GiB. Default: it shares the rest with
            other tables.
        admission: which new ids of the table get a row; replaces all of `embedding.admission`. null: all new
            ids.
        eviction: which rows leave memory when the table's part is full; replaces `embedding.eviction`. null:
            none.

    In Python, null is None, and `embedding` is the store's configuration. `Trainer.fit` loads `rows` unless
    it resumes; files written by `satrap checkpoint export` are also accepted.

    Raises:
        ConfigError: a value is invalid, or a frozen table has a setting that does not apply to it.
    """

    optimizer: Optimizer | None = None
    initial_scale: float | None = None
    dtype: Dtype | None = None
    rows: str | Path | None = None
    frozen: bool = False
    memory: Bytes | None = None
    admission: Admission | AsStore | None = "store"
    eviction: Eviction | AsStore | None = "store"

    def __post_init__(self) -> None:
        check_own(self.memory, "settings of a table")
        if self.initial_scale is not None and self.initial_scale < 0:
            raise ConfigError(f"settings of a table: initial_scale must be >= 0, got {self.initial_scale}")
        if self.frozen:
            keys = ("optimizer", "initial_scale", "admission")
            present = {key: getattr(self, key) not in (None, "store") for key in keys}
            compatibility.check_frozen(present, "settings of a table")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `of`.

        Omits file, memory and eviction, which are not part of a trained model.
        """
        optimizer = None if self.optimizer is None else self.optimizer.to_dict()
        plain: dict[str, Any] = {
            "optimizer": optimizer,
            "initial_scale": self.initial_scale,
            "dtype": self.dtype,
        }
        if self.frozen:
            plain["frozen"] = True
        if self.admission != "store":
            plain["admission"] = own_to_dict(self.admission)
        return plain

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Build the settings from `to_dict` data."""
        optimizer, admission = plain["optimizer"], plain.get("admission", "store")
        return cls(
            **{
                **plain,
                "optimizer": None if optimizer is None else from_dict(optimizer),
                "admission": Admission(**admission) if isinstance(admission, dict) else admission,
            }
        )


@checked()
@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Initial values, number format, budget and retention of rows, in one process or in shard servers.

    ```python
    store = satrap.store.StoreConfig(memory=4 << 30, eviction=satrap.store.Eviction("lru"))
    trainer = satrap.Trainer(model, schema, ..., store=store)
    ```

    Args:
        seed: of the initial rows, default 1.
        memory: memory for all tables together, for example 4GiB. Default: only the limits of single tables.
        admission: which new ids get a row.
        eviction: which rows leave memory when it is full. Default none: a new id then ends the run with an
            error.
        tier: a file on disk for evicted rows. Default none: evicted rows are lost.
        initial_scale: new rows are drawn uniformly from (-initial_scale, initial_scale).
        dtype: number format of the weights.
        tables: name of a table -> its different settings, see `TableSettings`; default none.
        device: where the rows and their optimizer state are: cpu, cuda or cuda:N. On a GPU, `memory` is the
            device's, by default half of its free memory.

    In Python, memory is in bytes. initial_scale, dtype and tables apply to tables derived from a schema.
    A `Table` has its own.
    """

    seed: int = 1
    memory: Bytes | None = None
    admission: Admission | None = None
    eviction: Eviction | None = None
    tier: Tier | None = None
    initial_scale: float = 0.01
    dtype: Dtype = "float32"
    tables: Mapping[str, TableSettings] = field(default_factory=dict)
    device: str = "cpu"

    def part(self, shards: int) -> StoreConfig:
        """Return the settings of one of several shards, with its part of the memory and tier."""
        return replace(
            self,
            memory=None if self.memory is None else self.memory // shards,
            tier=None if self.tier is None else self.tier.part(1, shards),
        )

    def limited(self, by: StoreConfig) -> StoreConfig:
        """Return these settings with the memory, eviction and tier of others, also for each table."""
        replaced = {
            name: replace(
                self.tables.get(name, TableSettings()), memory=table.memory, eviction=table.eviction
            )
            for name, table in by.tables.items()
        }
        tables = {**self.tables, **replaced}
        return replace(self, memory=by.memory, eviction=by.eviction, tier=by.tier, tables=tables)

    def bounds(self, tables: Sequence[Table]) -> dict[str, str]:
        """Return the tables that do not keep every row -> the reason: "eviction", else "admission"."""
        evicted = {t.name: "eviction" for t in tables if t.eviction_or(self.eviction) is not None}
        chosen = {t.name: "admission" for t in tables if t.admission_or(self.admission) is not None}
        return chosen | evicted
