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
from satrap.dense.parallel.stages import chain_steps, compute, described, stage_cuts, stages_of, tensors
from satrap.errors import ConfigError
from tests.dense.networks import schema

pytestmark = pytest.mark.pytorch("2.13")

CHAINS: list[tuple[str, dict[str, Any]]] = [
    ("dnn", {"hidden": [6, 5, 4], "dropout": 0.1}),
    ("dcnv2", {"hidden": [6, 5]}),
    ("dcnv2", {"hidden": [6], "structure": "stacked", "bottom": [4], "rank": 2}),
    ("dlrm", {"hidden": [6, 5]}),
    ("xdeepfm", {"hidden": [6, 5]}),
    ("autoint", {"hidden": [6]}),
    ("fibinet", {"hidden": [6, 5]}),
    ("gdcn", {"hidden": [6]}),
    ("masknet", {"hidden": [6], "blocks": [6, 4]}),
    ("masknet", {"hidden": [], "blocks": [6, 4, 5], "structure": "serial"}),
    ("finalnet", {"hidden": [6, 4], "hidden2": [2]}),
    ("finalnet", {"hidden": [6], "gate": True}),
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
    cutting = stages_of(model, Mesh(pipeline=3), batch())
    assert len(cutting.stages) == len(cutting.handed) == 3
    found: Any = batch()
    for stage, handed in zip(cutting.stages, cutting.handed, strict=True):
        found = compute([step for link in stage for step in link.steps], found)
        assert all(len(tensor) == 3 for tensor in tensors(found))
        torch.testing.assert_close(tensors(found), handed, rtol=0, atol=0)
    torch.testing.assert_close(found, model(batch()))
    held = [p for stage in cutting.stages for link in stage for p in link.parameters]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def least(costs: list[int], parts: int) -> int:
    """Return what the most costly of so many neighbouring groups costs if they are chosen best."""
    return min(
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True))
        for cuts in combinations(range(1, len(costs)), parts - 1)
    )


def test_the_stage_with_most_operations_has_as_few_as_can_be() -> None:
    """A layer that is applied to each of a sample's vectors costs more than its weights say."""
    widths, often = (3, 9, 2, 7, 7, 1, 8, 4), (1, 6, 1, 1, 3, 1, 1)
    layers = [nn.Linear(one, other) for one, other in pairwise(widths)]

    def applied(layer: nn.Linear, times: int) -> Any:
        return lambda x: torch.stack([layer(x) for _ in range(times)]).mean(0)

    class Often(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def chain(self) -> list[Any]:
            return [(applied(layer, times), layer) for layer, times in zip(layers, often, strict=True)]

    costs = [one * other * times for (one, other), times in zip(pairwise(widths), often, strict=True)]
    for parts in (2, 3, 4):
        stages = stages_of(Often(), Mesh(pipeline=parts), torch.ones(2, 3)).stages
        found = [sum(costs[layers.index(m)] for link in stage for m in link.modules) for stage in stages]
        assert max(found) == least(costs, parts)
    by_weights = stages_of(nn.Sequential(*layers), Mesh(pipeline=2), torch.ones(2, 3)).stages
    assert [len(stage) for stage in by_weights] != [
        len(stage) for stage in stages_of(Often(), Mesh(pipeline=2), torch.ones(2, 3)).stages
    ]


def test_of_a_network_without_products_weights_are_counted() -> None:
    class Scale(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.sum(0)

    sizes = [3, 1, 4, 1, 5, 9, 2, 6]
    model = nn.Sequential(*map(Scale, sizes))
    for parts in (2, 3):
        stages = stages_of(model, Mesh(pipeline=parts), torch.ones(2, 2)).stages
        found = [sum(len(p) for link in stage for p in link.parameters) for stage in stages]
        assert max(found) == least(sizes, parts)


def test_stages_begin_with_the_modules_that_are_named() -> None:
    model = models.create("dnn", schema(), hidden=[6, 5, 4])
    stages = stages_of(model, Mesh(pipeline=3, stages=("deep.2", "head")), batch()).stages
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
        (normed(), {}, "mesh.pipeline cannot be combined with batch normalization: 1"),
        (nn.Bilinear(1, 1, 1), {}, "Bilinear cannot be split into stages: it has no method chain"),
        (Odd(), {"pipeline": 4}, "mesh.pipeline is 4, but Odd has 3 layers to split at"),
        (
            Odd(),
            {"schedule": "looped_bfs"},
            "mesh.pipeline is 2 with 2 stages each, but Odd has 3 layers to split at",
        ),
        (Odd("second"), {}, "the weight second.weight of Odd is in no step of its chain"),
        (Odd(shared=True), {}, "the weight first.weight is used in 2 stages"),
        (Odd(), {"stages": ("secnod",)}, "stages names 'secnod', but no stage can begin there"),
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
        stages_of(model, Mesh(**{"pipeline": 2, **mesh}), torch.ones(2, 4))
    assert caught.value.what == what


def test_as_many_stages_as_layers_are_possible_and_each_has_a_layer() -> None:
    for mesh in (Mesh(pipeline=3), Mesh(pipeline=3, stages=("second", "third"))):
        stages = stages_of(Odd(), mesh, torch.ones(2, 4)).stages
        assert [[link.name for link in stage] for stage in stages] == [["first"], ["second"], ["third"]]
    [stage] = stages_of(Odd(), Mesh(), torch.ones(2, 4)).stages
    assert [link.name for link in stage] == ["first", "second", "third"]


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
    model = nn.Sequential(*layers)
    for tensor, found in ((2, cuts), (1, {})):
        mesh = Mesh(1, tensor, pipeline=2, stages=(second,))
        assert stage_cuts(model, mesh, stages_of(model, mesh, torch.ones(2, 4)).stages) == found


def test_an_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(ConfigError, match=r"mesh.pipeline needs PyTorch 2.13 or newer, but 2.12.1"):
        chain_steps(Odd(), Mesh(pipeline=2))


def test_only_tensors_pass_from_stage_to_stage() -> None:
    assert [len(tensors(found)) for found in (torch.ones(1), (torch.ones(1), torch.ones(2)))] == [1, 2]
    with pytest.raises(ConfigError, match="returned a dict"):
        tensors({"x": torch.ones(1)})


def test_a_weight_may_be_shared_inside_a_stage() -> None:
    class Twice(Odd):
        def chain(self) -> list[Any]:
            return [self.first, self.third, self.second]

    shared = Twice(shared=True)
    stages = stages_of(shared, Mesh(pipeline=2, stages=("second",)), torch.ones(2, 4)).stages
    x: Tensor = torch.ones(2, 4)
    for stage in stages:
        x = compute([step for link in stage for step in link.steps], x)
    torch.testing.assert_close(x, shared.second(shared.third(shared.first(torch.ones(2, 4)))))
