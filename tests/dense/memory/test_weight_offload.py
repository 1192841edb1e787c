"""A network whose weights are elsewhere learns the same, and its weights are where they should be."""

from __future__ import annotations

import resource
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap.checkpoint import Series
from satrap.dense import offload_weights, offloaded
from satrap.dense.memory.initial_weights import build
from satrap.dense.memory.on_disk import is_on_disk
from satrap.dense.memory.weight_offload import weights_are_off
from satrap.dense.parallel.param_shards import UNIT
from satrap.errors import ConfigError
from satrap.train import Checkpointing, Observer, Progress, Trainer
from tests.dense.networks import OPTIMIZERS, WIDTH, Net, net, train
from tests.train.plain import Batches, grouped, make_batches, make_schema

assert UNIT <= WIDTH * WIDTH


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_on_a_disk_steps_are_those_of_the_optimizer_to_the_bit(name: str, tmp_path: Path) -> None:
    make, folder = OPTIMIZERS[name], str(tmp_path)
    model = offload_weights(net(), folder)
    for one, two in zip(train(model, offloaded(make, folder)), train(net(), make), strict=True):
        assert torch.equal(one, two)


def test_weights_and_gradients_are_files_without_a_name_and_stay_there(tmp_path: Path) -> None:
    model = offload_weights(net(), str(tmp_path))
    assert weights_are_off(model)
    model(torch.randn(16, WIDTH)).sum().backward()
    model.load_state_dict(deepcopy(net().state_dict()))
    large = [p for p in model.parameters() if p.numel() > 1]
    assert all(is_on_disk(p) for p in large)
    gradients = [p.grad for p in large if p.grad is not None]
    assert len(gradients) == len(large) - 2  # those of the frozen layer
    assert all(is_on_disk(g) for g in gradients)
    assert list(tmp_path.iterdir()) == []
    for one, two in zip(model.state_dict().values(), net().state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_what_shares_memory_still_does(tmp_path: Path) -> None:
    model = offload_weights(net(), str(tmp_path))
    assert isinstance(model, Net)
    assert model.again.weight is model.enter.weight
    assert model.cut.weight.data_ptr() == model.first.weight.data_ptr()
    assert model.get_buffer("seen").data_ptr() == model.head.weight.data_ptr()
    assert not is_on_disk(model.get_buffer("norm.running_mean"))


def test_a_gradient_that_is_not_strided_stays_as_it_is(tmp_path: Path) -> None:
    model = offload_weights(nn.Embedding(8, 2, sparse=True), str(tmp_path))
    model(torch.tensor([1, 3])).sum().backward()
    [weight] = model.parameters()
    assert weight.grad is not None
    assert weight.grad.is_sparse


def test_a_network_begins_on_the_disk_with_the_same_numbers(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))

    model = offload_weights(build(make, 1, in_parts=True), str(tmp_path))
    for one, two in zip(model.parameters(), build(make, 1).parameters(), strict=True):
        assert type(one) is nn.Parameter
        assert is_on_disk(one)
        assert torch.equal(one, two)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        offload_weights(net(), str(tmp_path / "none"))
    assert str(tmp_path / "none") in str(caught.value.where)


@pytest.mark.parametrize("of", ["weights", "gradients"])
def test_a_disk_without_room(tmp_path: Path, of: str) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    if of == "gradients":
        offload_weights(model, str(tmp_path))

    def work() -> None:
        if of == "weights":
            offload_weights(model, str(tmp_path))
        else:
            model(torch.randn(2, WIDTH)).sum().backward()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(ConfigError, match="cannot offload to this disk: File too large"):
            work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bfloat16"},
        {"precision": "float16"},
        {"checkpoint_activations": True, "microbatches": 2},
        {"clip_norm": 0.01},
    ],
    ids=str,
)
def test_a_trainer_learns_the_same_to_the_bit(options: dict[str, Any], tmp_path: Path) -> None:
    found = list[dict[str, Tensor]]()
    for off in (False, True):
        torch.manual_seed(0)
        model: nn.Module = satrap.models.create("dnn", make_schema(), hidden=[16, 16])
        make = OPTIMIZERS["adam"]
        if off:
            model, make = offload_weights(model, str(tmp_path)), offloaded(make, str(tmp_path))
        given = {"embedding_optimizer": satrap.optim.Adagrad(lr=0.1), "dense_optimizer": make, "mode": "sync"}
        trainer = Trainer(model, make_schema(), **grouped(**given, **options))
        trainer.fit(Batches(make_batches(4)), epochs=2)
        trainer.close()
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name])


def test_a_disk_without_room_for_the_copy_of_a_snapshot_does_not_end_training(tmp_path: Path) -> None:
    class Remove(Observer):
        def step(self, progress: Progress) -> None:
            if progress.step == 3:
                while not saved.steps():
                    time.sleep(0.01)
                (tmp_path / "disk").rmdir()
            time.sleep(0.05)  # for the thread that writes

    (tmp_path / "disk").mkdir()
    said, folder, saved = list[str](), str(tmp_path / "disk"), Series(str(tmp_path / "saved"))
    given: dict[str, Any] = {"embedding_optimizer": satrap.optim.Adagrad(lr=0.1), "mode": "sync"}
    given["dense_optimizer"] = offloaded(OPTIMIZERS["adam"], folder)
    model = satrap.models.create("dnn", make_schema(), hidden=[8])
    trainer = Trainer(offload_weights(model, folder), make_schema(), **grouped(**given))
    plan = Checkpointing(saved.url, every_steps=2, notice=said.append)
    result = trainer.fit(Batches(make_batches(6)), observers=[Remove()], checkpoint=plan)
    trainer.close()
    assert result.steps == 6
    assert said
    assert all(line.startswith("warning: cannot offload to this disk") for line in said)
    assert saved.steps() == [2]
