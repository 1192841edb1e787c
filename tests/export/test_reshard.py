"""`satrap checkpoint reshard`: other files, the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.checkpoint import verify
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.errors import CheckpointError, ConfigError
from satrap.export.reshard import reshard_everywhere
from tests import faults
from tests.cli.command import satrap
from tests.contract.parties import assert_equal_contents, connect, local, threads, train
from tests.support.snapshots import write
from tools_dev.chaos.digests import digest


def saved(place: Path) -> str:
    here = local()
    train(here, steps=4, seed=1)
    url = write(here, place)
    here.close()
    return url


def test_there_and_back(tmp_path: Path) -> None:
    url = saved(tmp_path / "x")
    before = digest(url)
    for shards in (3, 7, 1, 2):
        assert reshard_everywhere(url, shards)["x"] > 0
        verify(url)
        assert digest(url) == before
        files = read_manifest(Storage(url)).files
        assert len({name.split(".")[1] for name in files if name.startswith("table-")}) == shards
    here = local()
    here.rows.read(url)
    with threads(2) as servers:
        there = connect([server.address for server in servers])
        there.rows.read(url)
        assert_equal_contents(here, there)
        there.close()
    here.close()


def test_the_command(tmp_path: Path) -> None:
    url = saved(tmp_path / "x")
    answer = satrap("checkpoint", "reshard", url, "--shards", "3")
    assert answer.code == 0
    assert "rows for 3 shards" in answer.out
    assert satrap("checkpoint", "verify", url).code == 0
    assert "shard-0002" in satrap("checkpoint", "inspect", url, "--json").out
    satrap("checkpoint", "reshard", url, "--shards", "5000").assert_refused("shards must be 1 to 4096")
    exported = satrap("checkpoint", "export", url, "--output", tmp_path / "out", "--state")
    assert exported.code == 0
    assert (tmp_path / "out" / "a.parquet").exists()


def test_a_full_disk_leaves_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    url = saved(tmp_path / "x")
    before = digest(url)
    full = faults.fail(lambda: OSError(28, "No space left on device"))
    for at in (1, 3, 5):
        with (
            faults.armed("disk.create", full, at=at),
            pytest.raises(CheckpointError, match="No space left on device"),
        ):
            reshard_everywhere(url, 4)
        verify(url)
        assert digest(url) == before
    with pytest.raises(ConfigError):
        reshard_everywhere(url, 0)
