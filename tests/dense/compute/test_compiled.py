"""Translated blocks compute what PyTorch computes without a translation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from satrap.batch import EmbeddedBatch
from satrap.dense.compute import compiled
from satrap.errors import ConfigError
from satrap.train import TrainingOptions
from tests.support.trainers import alone, assert_same, make_trainer
from tests.train.plain import Batches, make_batches


class Blocks(nn.Module):
    """A stack, and blocks of their own shape, more than PyTorch's limit for translations of one function."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(25, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(10 - i, 9 - i), nn.Tanh()) for i in range(9))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        x = self.stack(batch.flat())
        for block in self.blocks:
            x = block(x)
        return x


SIZES = (12, 1, 7, 30, 5, 64, 2, 3, 12)


def batches() -> Batches:
    """Batches of many sizes."""
    return Batches([make_batches(1, size=size, seed=seed)[0] for seed, size in enumerate(SIZES)])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch hides this warning itself
def test_a_run_learns_the_same_and_is_translated_a_few_times() -> None:
    found, graphs = [], list[int]()
    for compile in (False, True):
        torch.manual_seed(3)
        counters.clear()
        data = batches()
        found.append(alone(data, data, epochs=2, model=Blocks(), compile=compile, microbatches=2))
        graphs.append(counters["stats"]["unique_graphs"])
    assert_same(*found, tolerance=1e-5)
    # Each of ten blocks, with and without gradients, for one sample and for more; and what was tried out. For
    # each size there would be more than a hundred.
    assert graphs[0] == 0
    assert 2 * 10 < graphs[1] <= 5 * 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_without_a_compiler_gets_an_error(tmp_path: Path) -> None:
    program = (
        "import torch; from torch import nn; from satrap.dense.compute.compiled import compile_blocks\n"
        "compile_blocks(nn.Sequential(nn.Linear(2, 2)), torch.device('cpu'))"
    )
    bare = {name: value for name, value in os.environ.items() if name != "CXX"}
    bare |= {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True)
    assert ended.returncode == 1
    assert (
        "ConfigError: compile does not work here: InvalidCxxCompiler: No working C++ compiler" in ended.stderr
    )
    assert "install g++" in ended.stderr


@pytest.mark.pytorch("2.13")
def test_each_block_is_translated_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def translate(function: Any, **options: Any) -> Any:
        asked.append((function, options))
        return lambda x: function(x).numel()

    monkeypatch.setattr(torch, "compile", translate)
    model = Blocks()
    compiled.compile_blocks(model, torch.device("cpu"))
    (tried, options), *blocks = asked
    assert tried(torch.ones(2)).tolist() == [2.0, 2.0]
    assert options == {}
    given = {"dynamic": True, "isolate_recompiles": True, "options": {"fallback_random": True}}
    assert [options for _, options in blocks] == [given] * 10
    assert (model.stack(torch.ones(3, 25)), model.blocks[0](torch.ones(3, 10))) == (30, 27)

    def refuse(function: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(ConfigError) as caught:
        compiled.compile_blocks(Blocks(), torch.device("cpu"))
    assert caught.value.what == "compile does not work here: no compiler"


@pytest.mark.pytorch("2.13")
def test_what_cannot_be_translated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="compile cannot be combined with checkpoint_activations"):
        TrainingOptions(compile=True, checkpoint_activations=True)
    with pytest.raises(ConfigError, match="compile found no blocks in Linear"):
        make_trainer(model=nn.Linear(25, 1), compile=True)
    monkeypatch.setattr(torch, "__version__", "2.12.1")
    with pytest.raises(ConfigError, match="compile needs PyTorch"):
        compiled.compile_blocks(Blocks(), torch.device("cpu"))
