"""Training on a CUDA device is training on the CPU, up to the order in which a device adds numbers.

`make test-gpu` runs these where there is a device; elsewhere they are skipped.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from satrap.exchange.servers import ShardServer
from satrap.train import Trainer, TrainingOptions
from tests.cli.command import process
from tests.launch.runs import make_recipe
from tests.support.trainers import Answer, assert_same, connecting, contents, make_trainer
from tests.train.plain import Batches, make_batches

DEVICE = "cuda"
TOLERANCE = 2e-5
"""A device sums in another order, and 40 steps of Adagrad and Adam carry that on."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]
MODES = [("sync", 0), ("hybrid", 3)]


def trained(device: str, shards: int, mode: str, staleness: int) -> Answer:
    """Train with an exchange in this process (`shards` 0) or with shard servers."""
    batches, validation = Batches(make_batches(40)), Batches(make_batches(5, seed=1))
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("127.0.0.1:0")) for _ in range(shards)]
        connect = connecting([s.address for s in servers], mode=mode) if shards else None
        trainer = make_trainer(device=device, mode=mode, staleness=staleness, exchange=connect)
        assert {p.device.type for p in trainer.model.parameters()} == {torch.device(device).type}
        result = trainer.fit(batches, validation=validation)
        answer = Answer(trainer, result, contents(trainer))
        trainer.close()
    return answer


@pytest.mark.parametrize(("mode", "staleness"), MODES)
@pytest.mark.parametrize("shards", [0, 2])
def test_a_run_on_a_device_is_that_on_the_cpu(shards: int, mode: str, staleness: int) -> None:
    on_cpu, on_device = (trained(device, shards, mode, staleness) for device in ("cpu", DEVICE))
    assert_same(on_cpu, on_device, TOLERANCE)
    assert on_device.result.metrics == pytest.approx(on_cpu.result.metrics, abs=1e-4)
    assert on_device.result.refused == 0


@pytest.mark.parametrize(("mode", "staleness"), MODES)
def test_a_model_trained_on_a_device_scores_the_same_on_the_cpu(
    tmp_path: Path, mode: str, staleness: int
) -> None:
    batches = Batches(make_batches(20))
    trainer = make_trainer(device=DEVICE, mode=mode, staleness=staleness)
    trainer.fit(batches)
    trainer.save(str(tmp_path / "model"))
    scores = trainer.predict(batches)
    again = Trainer.load(str(tmp_path / "model"), model=type(trainer.model)())
    np.testing.assert_allclose(scores, again.predict(batches), atol=1e-5)
    trainer.close()
    again.close()


def test_a_network_computes_in_16_bits_on_a_device(tmp_path: Path) -> None:
    batches = Batches(make_batches(20))
    trainer = make_trainer(device=DEVICE, mode="sync", precision="bfloat16")
    result = trainer.fit(batches)
    trainer.save(str(tmp_path / "model"))
    model = type(trainer.model)()
    on_cpu = Trainer.load(str(tmp_path / "model"), model=model)
    wide = Trainer.load(str(tmp_path / "model"), model=model, training=TrainingOptions())
    mine, other, exact = (t.predict(batches) for t in (trainer, on_cpu, wide))
    assert result.refused == 0
    np.testing.assert_allclose(mine, other, atol=5e-3)
    assert np.abs(mine - exact).max() > 1e-4
    for one in (trainer, on_cpu, wide):
        one.close()


def run(folder: Path, *settings: str) -> dict[str, float]:
    """Train by the command line; return the metrics of the test rows."""
    recipe = make_recipe(folder)
    options = [part for setting in settings for part in ("--set", setting)]
    answer = process("train", recipe, "--output", folder / "run", *options)
    assert answer.code == 0, answer.err
    found: dict[str, float] = json.loads((folder / "run" / "metrics.json").read_text())["test"]
    return found


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices")
@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_workers_on_several_devices_train_together(tmp_path: Path, mode: str) -> None:
    """Gradients are summed by NCCL. In `hybrid` the order of pushes is left to chance."""
    about = [f"training.mode={mode}", "cluster.exchange=servers", "cluster.shards=2", "cluster.workers=2"]
    on_cpu = run(tmp_path / "cpu", *about)
    on_devices = run(tmp_path / "cuda", *about, f"training.device={DEVICE}")
    for name in ("auc", "logloss"):
        assert on_devices[name] == pytest.approx(on_cpu[name], abs=1e-3 if mode == "sync" else 3e-2)
