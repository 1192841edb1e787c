from __future__ import annotations

from pathlib import Path

import pytest

from satrap.config import load
from satrap.tools.deploy.sizes import PROCESS, shard_bytes, trainer_bytes
from tests.launch.runs import make_recipe

GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ([], 25 * GIB),  # a quarter of the rows may change before a snapshot has written them
        (["embedding.memory=1GiB"], (1 << 28) + (1 << 28)),  # but copies of 256 MiB are always allowed
        (["embedding.eviction.policy=lru"], 25 * GIB + 17 * 20 * GIB // (19 + 4 * 4)),
        (
            ["embedding.eviction.policy=lru", "tables.user.eviction=null"],
            25 * GIB + 17 * 20 * GIB // (19 + 16),
        ),
        (
            ["tables.user.memory=40GiB", "tables.item={memory: 40GiB, eviction: {policy: lru}}"],
            25 * GIB + 17 * 10 * GIB // (19 + 16),
        ),
        (["embedding.eviction.policy=lru", "embedding.dtype=float16"], 25 * GIB + 17 * 20 * GIB // (19 + 8)),
    ],
)
def test_a_shard_holds_its_part_and_what_a_snapshot_copies(
    tmp_path: Path, settings: list[str], rows: int
) -> None:
    memory = [] if any(one.startswith("embedding.memory") for one in settings) else ["embedding.memory=80GiB"]
    sections = load(make_recipe(tmp_path), [*memory, *settings]).sections
    assert shard_bytes(sections, 4) == PROCESS + rows


def test_the_pod_that_trains_holds_all_its_processes(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    servers = ["cluster.exchange=servers", "cluster.workers=4", "embedding.memory=80GiB"]
    helpers = ["cluster.loaders=2", "cluster.embedding_workers=1"]
    assert trainer_bytes(load(path, servers).sections, 3 * GIB) == GIB + 12 * GIB
    assert trainer_bytes(load(path, [*servers, *helpers]).sections, 3 * GIB) == 4 * GIB + 12 * GIB
    alone = load(path, ["embedding.memory=80GiB"]).sections
    assert trainer_bytes(alone, 3 * GIB) == GIB + 3 * GIB + 100 * GIB
    replicas = [*servers, "cluster.placements={user: replicated}"]
    assert trainer_bytes(load(path, replicas).sections, 3 * GIB) == GIB + 12 * GIB + 100 * GIB
    together = ["cluster.exchange=collective", *servers[1:]]
    assert trainer_bytes(load(path, together).sections, 3 * GIB) == GIB + 12 * GIB + 100 * GIB
