"""Numbers and addresses of processes, and the names of placed tables."""

from __future__ import annotations

from pathlib import Path

from tests.config.recipes import loaded, refused


def test_a_worker_has_at_most_one_loader(tmp_path: Path) -> None:
    error = refused(tmp_path, "cluster.exchange=servers", "cluster.workers=2", "cluster.loaders=3")
    assert error.what == "cluster.loaders is 3, but cluster.workers is 2"
    assert error.where == "--set cluster.loaders"


def test_workers_on_gpus_ask_ray_for_them(tmp_path: Path) -> None:
    ray = ("cluster.exchange=servers", "cluster.launcher=ray", "training.device=cuda")
    error = refused(tmp_path, *ray)
    assert error.what == "training.device is cuda, but cluster.resources.worker.gpu is below 1"
    assert error.fix == "set cluster.resources.worker.gpu to 1"
    assert loaded(tmp_path, *ray, "cluster.resources.worker.gpu=1.0").sections.training.device == "cuda"
