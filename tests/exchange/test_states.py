from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, write_checkpoint
from satrap.checkpoint.chain import read_buckets
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.parts import write_tables
from satrap.checkpoint.stores import write_store
from satrap.errors import CheckpointError, StoreError
from satrap.exchange.states import (
    COUNTS,
    counts_of,
    held_by,
    largest,
    load_rows,
    restore,
    state_of,
    take_counts,
    take_state,
)
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard

TABLES = [Table("a", dim=2, optimizer=SGD(lr=0.1)), Table("b", dim=3, optimizer=SGD(lr=0.1))]
HALVES = (range(2048), range(2048, 4096))


def used(times: int, *, admits: bool = False) -> Shard:
    shard = Shard(TABLES, admission=None if admits else Admission(min_count=3))
    for _ in range(times):
        shard.lookup("a", np.arange(5, dtype=np.uint64))
        shard.update("a", np.arange(5, dtype=np.uint64), np.ones((5, 2), np.float32))
    return shard


def written(url: str, stores: list[Shard]) -> str:
    """A checkpoint of what two stores, of half the buckets each, need besides their rows."""

    def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
        files: dict[str, FileEntry] = {}
        for store, buckets in zip(stores, HALVES, strict=True):
            suffix = f".shard-{buckets.start}"
            files |= write_store(storage, folder, state_of(store), suffix=suffix, buckets=buckets)
        return files

    settings = {COUNTS: largest(map(counts_of, stores))}
    write_checkpoint(url, Checkpoint(settings, {}, {}, (), rows=write))
    return url


def test_a_store_of_the_same_buckets_takes_all(tmp_path: Path) -> None:
    stores = [used(1), used(2)]
    url = written(str(tmp_path), stores)
    for store, buckets in zip(stores, HALVES, strict=True):
        fresh = used(0)
        restore(fresh, url, buckets)
        own, back = state_of(store), state_of(fresh)
        assert len(own) > 2
        assert own.keys() == back.keys()
        assert all(np.array_equal(own[name], back[name]) for name in own)


@pytest.mark.parametrize("buckets", [range(4096), range(1024), range(2047), range(1, 2048)])
def test_a_store_of_other_buckets_takes_the_largest_counters(tmp_path: Path, buckets: range) -> None:
    url = written(str(tmp_path), [used(1), used(2)])
    fresh, empty = used(0), state_of(used(0))
    restore(fresh, url, buckets)
    assert counts_of(fresh) == {"a": [2, 2], "b": [0, 0]}
    back = state_of(fresh)
    assert all(np.array_equal(back[name], empty[name]) for name in empty if not name.endswith(".counts"))


def test_a_store_that_needs_counters_only_writes_no_file(tmp_path: Path) -> None:
    url = written(str(tmp_path), [used(3, admits=True), used(2, admits=True)])
    assert not list(tmp_path.rglob("store*"))
    fresh = used(0, admits=True)
    restore(fresh, url, HALVES[1])
    assert counts_of(fresh) == {"a": [3, 3], "b": [0, 0]}


def test_a_checkpoint_without_counters_changes_nothing(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), Checkpoint({}, {}, {}, ()))
    fresh = used(0)
    restore(fresh, str(tmp_path))
    assert counts_of(fresh) == {"a": [0, 0], "b": [0, 0]}


def test_counters_are_those_of_tables_however_these_are_grouped(tmp_path: Path) -> None:
    url = written(str(tmp_path), [used(3, admits=True), used(2, admits=True)])
    together = Shard([Table(name, dim=2, optimizer=SGD(lr=0.1)) for name in ("c", "b", "a")])
    restore(together, url)
    assert counts_of(together) == {name: [3, 3] for name in "cba"}


def test_a_store_reads_rows_of_its_own_tables() -> None:
    held = held_by(used(0), range(7, 9))
    assert [held(table) for table in ("a", "b", "c")] == [range(7, 9), range(7, 9), range(0)]
    of_table = held_by(used(0), lambda table: range(3 if table == "a" else 5))
    assert [of_table(table) for table in ("a", "b", "c")] == [range(3), range(5), range(0)]


def evicting(*names: str) -> Shard:
    """Tables of different widths, so that each is a group; each with its own memory."""
    dims = {"a": 2, "b": 3, "c": 4, "hot": 5}
    lru = {"memory": 150_000, "eviction": Eviction()}
    made = [
        Table(name, dim=dims[name], optimizer=SGD(lr=0.1), **({} if name == "hot" else lru))  # type: ignore[arg-type]
        for name in names
    ]
    return Shard(made, admission=Admission(min_count=2, memory=4096))


def use(store: Shard, seed: int) -> None:
    """Look ids up twice, more than there is room for; those of a table depend on its name."""
    for group in store.groups:
        for name in group.tables:
            source = np.random.default_rng([seed, *name.encode()])
            for _ in range(2):
                store.lookup(name, source.integers(0, 5000, 3000).astype(np.uint64))


def ids_of(store: Shard) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {name: set() for group in store.groups for name in group.tables}
    for chunk in store.snapshot():
        found[chunk.table] |= set(chunk.ids.tolist())
    return found


@pytest.mark.parametrize("after", [("a", "b"), ("b",), ("b", "a"), ("hot", "a", "b", "c"), ("c", "b", "hot")])
@pytest.mark.parametrize("before", [("a", "b", "c"), ("hot", "b", "a")])
def test_a_table_takes_the_state_of_its_own_name_and_no_other(
    before: Sequence[str], after: Sequence[str], tmp_path: Path
) -> None:
    """Tables are added, leave, or come in another order; those that stay go on as if nothing had changed."""
    store, fresh = evicting(*before), evicting(*after)
    use(store, 1)

    def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
        files = write_store(storage, folder, state_of(store))
        return files | write_tables(storage, folder, store.snapshot())

    write_checkpoint(str(tmp_path), Checkpoint({COUNTS: counts_of(store)}, {}, {}, (), rows=write))
    restore(fresh, str(tmp_path))
    load_rows(fresh, read_buckets(str(tmp_path), held_by(fresh, range(4096))))
    stay = set(before) & set(after)
    assert {name: ids for name, ids in ids_of(fresh).items() if ids} == {
        name: ids for name, ids in ids_of(store).items() if name in stay
    }
    for one in (store, fresh):
        use(one, 2)
    for name in stay:
        assert ids_of(fresh)[name] == ids_of(store)[name]
        assert counts_of(fresh)[name] == counts_of(store)[name]


def test_damage_is_named(tmp_path: Path) -> None:
    url = written(str(tmp_path), [used(1), used(2)])
    [path] = tmp_path.rglob("store.shard-2048.safetensors")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    restore(used(0), url, HALVES[0])
    with pytest.raises(CheckpointError, match=r"store.shard-2048.safetensors"):
        restore(used(0), url, HALVES[1])


def test_a_state_of_other_tables_is_refused() -> None:
    with pytest.raises(StoreError, match="the state of tables b does not fit"):
        take_state(used(0), {'["b"].counts': np.array([1])})


@pytest.mark.parametrize("limits", [(2**63 - 1, 2**32 - 1), (0, 0)])
def test_counters_that_are_possible_are_taken_of_all_tables_or_none(limits: tuple[int, int]) -> None:
    store = used(1)
    take = take_counts(store, {"a": list(limits), "b": [5, 6], "other": "x"})
    assert counts_of(store) == {"a": [1, 1], "b": [0, 0]}
    take()
    assert counts_of(store) == {"a": list(limits), "b": [5, 6]}


@pytest.mark.parametrize(
    "wrong", [None, [], [1], [1, 2, 3], [-1, 0], [0, -1], [2**63, 0], [0, 2**32], [0.5, 1], [1, "2"]]
)
def test_impossible_counters_are_refused(wrong: object) -> None:
    store = used(1)
    with pytest.raises(StoreError, match="the counters of table 'b' are missing or invalid"):
        take_counts(store, {"a": [7, 7], "b": wrong})
    with pytest.raises(StoreError, match="the counters of table 'a' are missing or invalid"):
        take_counts(store, wrong)
    assert counts_of(store) == {"a": [1, 1], "b": [0, 0]}


def test_rows_that_are_loaded_are_counted() -> None:
    store, chunks = used(0, admits=True), list(used(1, admits=True).snapshot())
    assert load_rows(store, chunks) == (5, True)
    assert load_rows(used(1, admits=True), chunks[:0]) == (0, False)  # there were others before
