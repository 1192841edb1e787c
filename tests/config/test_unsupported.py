from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from satrap.config.explain import walk
from satrap.config.unsupported import ONLY
from tests.config.recipes import loaded, refused

BEYOND = {
    "embedding.eviction": "{policy: lru}",
    "dense.mesh.data": "2",
    "dense.mesh.tensor": "2",
    "dense.mesh.pipeline": "2",
    "dense.sharded": "true",
    "dense.precision": "bfloat16",
    "training.mode": "async",
    "cluster.exchange": "servers",
    "cluster.shards": "2",
    "cluster.workers": "2",
    "cluster.launcher": "ray",
    "checkpoint.url": "somewhere",
    "checkpoint.every_steps": "100",
    "checkpoint.keep": "2",
}


@pytest.mark.parametrize("path", [".".join(path) for path in ONLY])
def test_a_value_beyond_this_version_is_refused(tmp_path: Path, path: str) -> None:
    error = refused(tmp_path, f"{path}={BEYOND[path]}")
    assert error.what.startswith(f"{path} is not supported in this version")
    assert error.where == f"--set {path}"
    assert error.fix


def test_defaults_are_supported(tmp_path: Path) -> None:
    sections = loaded(tmp_path).sections
    for path, working in ONLY.items():
        value: Any = reduce(getattr, path, sections)
        assert value in working


def test_every_key_of_cluster_and_checkpoint_is_guarded() -> None:
    guarded = {path for path in ONLY if path[0] in ("cluster", "checkpoint")}
    assert guarded == {
        (*p, k) for p, m in walk() if p in (("cluster",), ("checkpoint",)) for k in m.model_fields
    }
