"""Where networks are cut into stages, of the models here and of others."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.dense import Mesh
from satrap.dense.stages import compute, described, stage_cuts, stages_of, tensors
from satrap.errors import ConfigError
from tests.dense.test_tensor_plan import schema

CHAINS: list[tuple[str, dict[str, Any]]] = [
    ("dnn", {"hidden": [6, 5, 4], "dropout": 0.1}),
    ("dcnv2", {"hidden": [6, 5]}),
    ("dcnv2", {"hidden": [6], "structure": "stacked", "bottom": [4], "rank": 2}),
    ("dlrm", {"hidden": [6, 5]}),
    ("wukong", {"hidden": [6]}),
    ("rankmixer", {"hidden": [6]}),
]


def batch(size: int = 3) -> EmbeddedBatch:
    torch.manual_seed(1)
    rows = {name: torch.randn(size, 8) for name in ("user", "item")}
    return EmbeddedBatch(size, rows, torch.randn(size, 1))


@pytest.mark.parametrize(("name", "arguments"), CHAINS)
def test_stages_of_the_models_here_compute_what_the_whole_does(name: str, arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = models.create(name, schema(), **arguments).eval()
    stages = stages_of(model, Mesh(pipeline=3))
    assert len(stages) == 3
    found: Any = batch()
    for stage in stages:
        found = compute([step for link in stage for step in link.steps], found)
        assert all(len(tensor) == 3 for tensor in tensors(found))
    torch.testing.assert_close(found, model(batch()))
    held = [p for stage in stages for link in stage for p in link.parameters]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_stages_have_as_few_parameters_as_can_be() -> None:
    widths = (3, 9, 2, 7, 7, 1, 8, 4)
    model = nn.Sequential(*(nn.Linear(one, other) for one, other in pairwise(widths)))
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in model]
    for parts in (2, 3, 4):
        stages = stages_of(model, Mesh(pipeline=parts))
        largest = max(sum(p.numel() for link in stage for p in link.parameters) for stage in stages)
        every = (
            max(sum(sizes[a:b]) for a, b in zip((0, *cuts), (*cuts, len(sizes)), strict=True))
            for cuts in combinations(range(1, len(sizes)), parts - 1)
        )
        assert largest == min(every)


def test_stages_begin_with_the_modules_that_are_named() -> None:
    model = models.create("dnn", schema(), hidden=[6, 5, 4])
    stages = stages_of(model, Mesh(pipeline=3, stages=("deep.2", "head")))
    assert described(stages) == "deep.0 (108) | deep.2 deep.4 (59) | head (5)"
    assert [len(link.steps) for stage in stages for link in stage] == [3, 2, 2, 1]


class Odd(nn.Module):
    """A network whose chain a test makes."""

    def __init__(self, *forgotten: str, shared: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        if shared:
            self.third.weight = self.first.weight
        self.forgotten = forgotten

    def chain(self) -> list[Any]:
        return [module for name, module in self.named_children() if name not in self.forgotten]


class Strange(Odd):
    def chain(self) -> list[Any]:
        return [self.first, nn.Linear(4, 4)]


class Nothing(Odd):
    def chain(self) -> list[Any]:
        return [self.first, "second"]


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("model", "mesh", "what"),
    [
        (normed(), {}, "mesh.pipeline does not go with batch normalisation: 1"),
        (nn.Bilinear(1, 1, 1), {}, "Bilinear cannot be cut into stages: it has no method chain"),
        (Odd(), {"pipeline": 4}, "mesh.pipeline is 4, but Odd has 3 layers to cut at"),
        (
            Odd(),
            {"schedule": "looped_bfs"},
            "mesh.pipeline is 2 with 2 stages each, but Odd has 3 layers to cut at",
        ),
        (Odd("second"), {}, "the weight second.weight of Odd is in no step of its chain"),
        (Odd(shared=True), {}, "the weight first.weight is used in 2 stages"),
        (Odd(), {"stages": ("secnod",)}, "stages names 'secnod', with which none can begin"),
        (Odd(), {"stages": ("first",)}, "stages cannot begin with first"),
        (
            Odd(),
            {"stages": ("third", "second"), "pipeline": 3},
            "stages cannot begin with third, second",
        ),
        (
            Odd(),
            {"stages": ("second", "second"), "pipeline": 3},
            "stages cannot begin with second, second",
        ),
        (Strange(), {}, "chain of Strange has a Linear that is not in the model"),
        (Nothing(), {}, "chain has 'second'"),
    ],
)
def test_what_cannot_be_cut_is_refused(model: nn.Module, mesh: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stages_of(model, Mesh(**{"pipeline": 2, **mesh}))
    assert caught.value.what == what


def test_as_many_stages_as_layers_are_possible_and_each_has_a_layer() -> None:
    for mesh in (Mesh(pipeline=3), Mesh(pipeline=3, stages=("second", "third"))):
        assert [[link.name for link in stage] for stage in stages_of(Odd(), mesh)] == [
            ["first"],
            ["second"],
            ["third"],
        ]
    assert [[link.name for link in stage] for stage in stages_of(Odd(), Mesh())] == [
        ["first", "second", "third"]
    ]


@pytest.mark.parametrize(
    ("second", "cuts"),
    [
        ("4", {"0": "column", "2": "row", "4": "column", "6": "row"}),
        ("2", {"0": "alone", "2": "column", "4": "row", "6": "alone"}),
    ],
)
def test_layers_are_cut_in_pairs_of_one_stage(second: str, cuts: dict[str, str]) -> None:
    widths = ((4, 8), (8, 8), (8, 8), (8, 4))
    layers = [layer for one, other in widths for layer in (nn.Linear(one, other), nn.ReLU())]
    assert stage_cuts(nn.Sequential(*layers), Mesh(1, 2, pipeline=2, stages=(second,))) == cuts
    assert stage_cuts(nn.Sequential(*layers), Mesh(pipeline=2, stages=(second,))) == {}


def test_an_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(ConfigError, match=r"mesh.pipeline needs PyTorch 2.13, and this is 2.12.1"):
        stages_of(Odd(), Mesh(pipeline=2))


def test_only_tensors_pass_from_stage_to_stage() -> None:
    assert [len(tensors(found)) for found in (torch.ones(1), (torch.ones(1), torch.ones(2)))] == [1, 2]
    with pytest.raises(ConfigError, match="returned a dict"):
        tensors({"x": torch.ones(1)})


def test_a_weight_may_be_shared_inside_a_stage() -> None:
    class Twice(Odd):
        def chain(self) -> list[Any]:
            return [self.first, self.third, self.second]

    shared = Twice(shared=True)
    stages = stages_of(shared, Mesh(pipeline=2, stages=("second",)))
    x: Tensor = torch.ones(2, 4)
    for stage in stages:
        x = compute([step for link in stage for step in link.steps], x)
    torch.testing.assert_close(x, shared.second(shared.third(shared.first(torch.ones(2, 4)))))
