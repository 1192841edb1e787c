"""Kinds of hosts, from satrap's file and from one of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.tools.plan.cluster import read

OWN = """
date = 2026-01-02
[machines."ours/big"]
role = "shards"
memory = 1024
cores = 64
network = 10
price = 5
"""


def test_the_file_that_comes_with_satrap_has_hosts_for_rows_and_for_networks_in_three_clouds() -> None:
    catalog = read()
    for role in ("shards", "workers"):
        assert {kind.name.partition("/")[0] for kind in catalog.of(role)} == {"gcp", "aws", "azure"}
    assert all(kind.gpus and kind.tflops for kind in catalog.of("workers"))
    assert catalog.origin == "machines.toml of satrap, 2026-11-01"


def test_a_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    (machine,) = read(str(tmp_path / "own.toml")).of("shards")
    assert (machine.name, machine.bytes, machine.bytes_per_second) == ("ours/big", 2**40, 1.25e9)
    assert (machine.gpus, machine.tflops) == (0, 0.0)
    (tmp_path / "own.toml").write_text(OWN.replace("price = 5", "price = 0\ngpus = 0\ntflops = 0"))
    assert read(str(tmp_path / "own.toml")).machines["ours/big"].price == 0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("cores = 64", "", "'cores' is missing"),
        ("cores = 64", "cores = 0", "'cores' is missing, unknown or invalid"),
        ("cores = 64", 'cores = "64"', "'cores'"),
        ("cores = 64", "cores = true", "'cores'"),
        ("price = 5", "price = nan", "'price'"),
        ("price = 5", "prize = 5\nprice = 5", "'prize'"),
        ('"shards"', '"shard"', "'role'"),
        ("price = 5", "price = -0.1", "'price'"),
        ("price = 5", "price = 5\ngpus = -1", "'gpus'"),
        ("memory = 1024", "memory = 1_000_000_000", "'memory'"),
        ('[machines."ours/big"]', '[machines]\n"ours/big" = 3\n[other]', "'cores' is missing"),
        ("[machines", "[machine", "the machines file is empty"),
        ('[machines."ours/big"]', "[machines]\n[other]", "the machines file is empty"),
        ('[machines."ours/big"]', "machines = 3\n[other]", "the machines file is empty"),
        ("role =", "role", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(before, after))
    with pytest.raises(ConfigError, match=said) as caught:
        read(str(path))
    assert caught.value.where == str(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(str(tmp_path / "none.toml"))
