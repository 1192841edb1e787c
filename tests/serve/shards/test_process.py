"""A shard of served rows that follows a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Series
from satrap.errors import ConfigError
from satrap.exchange.lookup import LookupRequest
from satrap.exchange.shard_map import ShardMap
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.shards.kept_rows import Version
from satrap.serve.shards.process import RowsServer, ShardOptions, rows_of
from satrap.store import Shard
from tests.serve.followed import appear, beginning, eventually
from tests.serve.sharding import serving, shard


def content(store: Shard) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return the rows by table, in canonical order."""
    return {
        name: [(chunk.ids.tobytes(), chunk.weights.tobytes()) for chunk in store.export(name)]
        for group in store.groups
        for name in group.tables
    }


def test_shards_have_all_rows_and_each_once(run: RunFolder) -> None:
    def rows(number: int, shards: int) -> dict[str, int]:
        with serving(shard(run.path, number, shards, follow=False)) as one:
            found: dict[str, int] = one.service.status()["rows"]
            return found

    whole = rows(0, 1)
    parts = [rows(number, 3) for number in range(3)]
    assert whole == {table: sum(part[table] for part in parts) for table in whole}
    assert min(sum(part.values()) for part in parts) > 0


def test_versions_are_taken_one_by_one_and_end_where_loading_the_last_one_ends(
    snapshots: RunFolder, tmp_path: Path
) -> None:
    """Two versions appear at once: both must be there, as other shards may have seen them apart."""
    copied, later = beginning(snapshots, tmp_path, "checkpoints")
    one = shard(copied, 1, 2)
    assert one.follower is not None
    rows = one.service._rows
    first = rows.newest.step
    for version in later[:2]:
        appear(version, copied / "checkpoints")
    steps = Series(str(copied / "checkpoints")).steps()
    with serving(one):
        eventually(lambda: rows.newest.step == steps[-1])
        assert [version.step for version in rows.versions] == steps[:3]
        assert steps[0] == first
        eventually(lambda: not rows._stores[-1].folding)
        assert one.follower.statistics.reloads == 0
        loaded = rows_of(
            snapshots,
            snapshots.recipe(),
            ShardMap(2).buckets(1),
            Series(str(copied / "checkpoints")).place(steps[-1]),
        )
        assert content(rows.store) == content(loaded.store)


def test_a_version_that_follows_no_known_one_is_loaded_beside(snapshots: RunFolder, tmp_path: Path) -> None:
    copied, later = beginning(snapshots, tmp_path, "checkpoints")
    one = shard(copied, 0, 2)
    assert one.follower is not None
    rows = one.service._rows
    known = rows.newest
    rows._stores[0].versions[0] = Version(known.step, "of another life", known.published)
    appear(later[0], copied / "checkpoints")
    with serving(one):
        eventually(lambda: one.follower is not None and one.follower.statistics.updates == 1)
        assert one.follower.statistics.reloads == 1
        assert rows.versions[0].id == "of another life"
        splits = np.array([0, *[1] * len(rows.store.groups[0].tables)], np.int64)
        request = LookupRequest(0, np.array([1], np.uint64), splits)
        for version in rows.versions:
            assert rows.peek(version.id, [request])


def test_a_damaged_version_is_refused_and_the_shard_goes_on(snapshots: RunFolder, tmp_path: Path) -> None:
    copied, later = beginning(snapshots, tmp_path, "checkpoints")
    notices: list[str] = []
    options = ShardOptions(listen="127.0.0.1:0", number=0, shards=1, follow=True)
    one = RowsServer.load(RunFolder.open(copied), options, (), notices.append)
    assert one.follower is not None
    [file] = later[0].glob("data-*/table-000*.arrow")
    original = file.read_bytes()
    file.write_bytes(original[:-9] + bytes([original[-9] ^ 1]) + original[-8:])
    appear(later[0], copied / "checkpoints")
    with serving(one):
        eventually(lambda: one.follower is not None and one.follower.statistics.refused == 1)
        assert "is not served" in notices[-1]
        assert len(one.service._rows.versions) == 1


def test_what_is_no_shard_is_refused(run: RunFolder) -> None:
    for number, shards in ((2, 2), (0, 0)):
        with pytest.raises(ConfigError, match="does not exist"):
            shard(run.path, number, shards, follow=False)
    with pytest.raises(ConfigError, match="needs a key"):
        shard(run.path, 0, 1, follow=False, listen="0.0.0.0:0")
    with pytest.raises(ConfigError, match="publishes nothing"):
        shard(run.path, 0, 1)
