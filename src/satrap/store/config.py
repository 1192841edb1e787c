"""The settings of a store besides its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from satrap.arguments import checked
from satrap.errors import ConfigError
from satrap.optim import Optimizer, from_dict
from satrap.retention import Admission, AsStore, Eviction, check_own, own_to_dict
from satrap.schema import Dtype, Table
from satrap.store.shard import Shard
from satrap.store.tier import Tier


@checked()
@dataclass(frozen=True, slots=True)
class TableSettings:
    """What differs in one table from what the others have; default: nothing.

    Args:
        optimizer: how its rows learn.
        initial_scale: its rows start uniform in (-initial_scale, initial_scale).
        dtype: number format of its rows, see `Table`.
        rows: file of the rows that it starts with, for example pretrained vectors: Parquet with columns id
            and weights (lists), or NumPy's .npz with the arrays id [n] and weights [n, dim]. Ids are values
            as in the data. A file that `satrap checkpoint export` wrote will do as well. `Trainer.fit` loads
            it, unless it resumes.
        frozen: the table has the rows of the file and no others, and they never change: see `Table`. Default
            False: they are trained, like those of new ids.
        memory, admission, eviction: its own budget, and which of its rows come and go in it, see `Table`.

    Raises:
        ConfigError: an impossible value, or a frozen table with what it has no use for.
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
                    f"a frozen table has no {name}",
                    why="its rows never change, and no others are created",
                    fix=f"remove {name}, or do not freeze the table",
                )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `of` reads back.

        Without file, memory and eviction, as they do not belong to a trained model.
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
        """Build it from `to_dict` data."""
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
    """How rows start and how many are kept; the same in one process and in shard servers.

    ```python
    store = satrap.store.StoreConfig(memory=4 << 30, eviction=satrap.store.Eviction("lru"))
    trainer = satrap.Trainer(model, schema, ..., store=store)
    ```

    Args:
        seed: of the initial rows, default 1.
        memory: byte budget of all tables, default none.
        admission: which new ids get a row, default all.
        eviction: which rows are evicted once `memory` is used up; None: none, and new ids are refused.
        tier: where evicted rows are kept so that they can come back, see `Tier`; None: nowhere.
        initial_scale: rows start uniform in (-initial_scale, initial_scale), default 0.01.
        dtype: number format of the rows: "float32" (default), "bfloat16" or "float16", see `Table`.
        tables: name of a table -> what differs in it, see `TableSettings`; default none.

    The last three apply to the tables that a schema asks for. A `Table` has its own.
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
        """Return the settings of one of several shards, whose memory and tier together have this size."""
        return replace(
            self,
            memory=None if self.memory is None else self.memory // shards,
            tier=None if self.tier is None else self.tier.part(1, shards),
        )

    def limited(self, by: StoreConfig) -> StoreConfig:
        """Return these settings with the memory, eviction and tier of others, those of tables included."""
        own = {
            name: replace(
                self.tables.get(name, TableSettings()), memory=table.memory, eviction=table.eviction
            )
            for name, table in by.tables.items()
        }
        tables = {**self.tables, **own}
        return replace(self, memory=by.memory, eviction=by.eviction, tier=by.tier, tables=tables)

    def bounds(self, tables: Sequence[Table]) -> dict[str, str]:
        """Return the tables that do not keep every row -> why: "eviction", else "admission"."""
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
