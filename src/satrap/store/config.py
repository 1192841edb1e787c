"""The settings of a store other than its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from satrap.errors import ConfigError
from satrap.optim import Optimizer, from_dict
from satrap.retention import Admission, AsStore, Eviction, check_own, own_to_dict
from satrap.runtime.arguments import checked
from satrap.schema import Dtype, Table
from satrap.store.shard import Shard
from satrap.store.tier import Tier


@checked()
@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of one table that differ from the store's; default: none.

    Args:
        optimizer: the optimizer of its rows.
        initial_scale: its rows start uniform in (-initial_scale, initial_scale).
        dtype: number format of its rows, see `Table`.
        rows: file of the table's initial rows, for example pretrained vectors: Parquet with columns id and
            weights (lists), or NumPy's .npz with the arrays id [n] and weights [n, dim]. Ids are values as in
            the data. Files written by `satrap checkpoint export` are also accepted. `Trainer.fit` loads the
            file unless it resumes.
        frozen: the table has only the rows of the file, which never change: see `Table`. Default False: the
            rows are trained, like the rows of new ids.
        memory, admission, eviction: the table's own budget, admission and eviction, see `Table`.

    Raises:
        ConfigError: a value is invalid, or a frozen table has a setting that does not apply to it.
    """

    optimizer: Optimizer | None = None
    initial_scale: float | None = None
    dtype: Dtype | None = None
    rows: str | Path | None = None
    frozen: bool = False
    memory: int | None = None
    admission: Admission | AsStore | None = "store"
    eviction: Eviction | AsStore | None = "store"

    def __post_init__(self) -> None:
        check_own(self.memory, "settings of a table")
        for name in ("optimizer", "initial_scale", "admission"):
            if self.frozen and getattr(self, name) not in (None, "store"):
                raise ConfigError(
                    f"settings of a table: frozen cannot be combined with {name}",
                    why="a frozen table's rows never change, and no rows are created",
                    fix=f"remove {name}, or do not freeze the table",
                )

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
        memory: byte budget of all tables, default none.
        admission: which new ids get a row, default all.
        eviction: which rows are evicted once `memory` is used up; None: none, and new ids are refused.
        tier: file that keeps evicted rows so that they can return, see `Tier`; None: evicted rows are lost.
        initial_scale: rows start uniform in (-initial_scale, initial_scale), default 0.01.
        dtype: number format of the rows: "float32" (default), "bfloat16" or "float16", see `Table`.
        tables: name of a table -> its different settings, see `TableSettings`; default none.

    The last three apply to tables derived from a schema. A `Table` has its own.
    """

    seed: int = 1
    memory: int | None = None
    admission: Admission | None = None
    eviction: Eviction | None = None
    tier: Tier | None = None
    initial_scale: float = 0.01
    dtype: Dtype = "float32"
    tables: Mapping[str, TableSettings] = field(default_factory=dict)

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

    def open(self, tables: Sequence[Table]) -> Shard:
        """Return an empty store with these tables; raises as `Shard` does."""
        return Shard(
            tables,
            seed=self.seed,
            memory=self.memory,
            admission=self.admission,
            eviction=self.eviction,
            tier=self.tier,
        )
