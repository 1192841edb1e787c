"""Weights are functions of the seed and of the module's name; a constructor of another kind keeps its own."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from satrap import models
from satrap.dense.memory import initial_weights as initial_weights_module
from satrap.dense.memory.initial_weights import build, fill_all, initial_weights
from satrap.errors import ConfigError
from satrap.models.layers.common import mlp
from satrap.schema import Categorical, Label, Numeric, Schema
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES

WIDE = 300  # so that a square matrix is large
SEED = 5


class Own(nn.Module):
    """Sets its weights and buffers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE)
        self.table = nn.Parameter(torch.empty(WIDE, WIDE))
        self.short = nn.Parameter(torch.empty(3, dtype=torch.float16), requires_grad=False)
        self.register_buffer("mask", torch.empty(WIDE, WIDE), persistent=False)
        self.reset_parameters()
        self.table.mark = "kept"  # type: ignore[attr-defined]
        self.all = [self.table]

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.1)
        nn.init.ones_(self.short)
        with torch.no_grad():
            self.table[0] = 0
            self.table.mul_(2)
            self.mask.copy_(torch.ones(WIDE, WIDE).tril())


REPEATABLE: dict[str, Callable[[], nn.Module]] = {
    "own": Own,
    "mlp": lambda: mlp(WIDE, [WIDE, WIDE, 3], batch_norm=True)[0],
    "embedding": lambda: nn.Embedding(WIDE, WIDE, padding_idx=3),
    "frozen": lambda: nn.Sequential(nn.Linear(WIDE, 2).requires_grad_(False), nn.LayerNorm(2)),
}


class Custom(nn.Module):
    """Initializes its weights in a loop, as many models do."""

    def __init__(self, set_weight: Callable[[nn.Linear], object] = lambda _: None) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        set_weight(self.layer)


class Unmade(nn.Module):
    """Has a weight that `reset_parameters` does not set."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.zeros(WIDE)), nn.Parameter(torch.empty(WIDE))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.other)


class Foreign(nn.Module):
    """Its `reset_parameters` also sets the weights of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.weight = nn.LayerNorm(WIDE), nn.Parameter(torch.empty(WIDE))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.child.weight)


class Depends(nn.Module):
    """Its layers depend on the numbers in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, int(torch.tensor([3, 4]).sum()))


class Unnamed(nn.Module):
    """Has weights and no `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDE, WIDE) * 0.01)


class Plain(nn.Module):
    """Has a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain = nn.Linear(WIDE, WIDE), [torch.ones(3)]


class Cloned(nn.Module):
    """Its layers begin with the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(WIDE, WIDE)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))


class Drawn(nn.Module):
    """Draws a number from Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.chance = nn.Linear(WIDE, WIDE), random.random()


class FromNumPy(nn.Module):
    """Begins with numbers from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior", torch.from_numpy(np.arange(3.0)))
        self.layer = nn.Linear(3, 3)


class Tied(nn.Module):
    """Uses a weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.second.weight = self.first.weight


def replaced(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(torch.zeros(WIDE, WIDE))


def in_a_thread(layer: nn.Linear) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(nn.init.ones_, layer.weight).result()


ALONE = "layer.weight is not set by reset_parameters alone"
WHOLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "loop": (lambda: Custom(lambda layer: nn.init.orthogonal_(layer.weight)), ALONE),
    "data": (lambda: Custom(lambda layer: layer.weight.data.normal_(0, 0.02)), ALONE),
    "rows": (lambda: Custom(lambda layer: layer.weight.detach()[::2].zero_()), ALONE),
    "item": (lambda: Custom(lambda layer: layer.weight.data.__setitem__(3, 1.0)), ALONE),
    "operator": (lambda: Custom(lambda layer: layer.weight.data.__imul__(3)), ALONE),
    "replaced": (lambda: Custom(replaced), ALONE),
    "thread": (lambda: Custom(in_a_thread), ALONE),
    "numpy": (lambda: Custom(lambda layer: layer.weight.detach().numpy().fill(3)), "TypeError: can't"),
    "seeded": (lambda: Custom(lambda _: torch.manual_seed(3)), "it draws random numbers"),
    "unmade": (Unmade, "weight is not set by reset_parameters alone"),
    "foreign": (Foreign, "reset_parameters of Foreign sets child.weight"),
    "depends": (Depends, "RuntimeError: Tensor.item() cannot be called on meta tensors"),
    "unnamed": (Unnamed, "Unnamed has no method reset_parameters"),
    "plain": (Plain, "it keeps tensors that are neither parameters nor buffers"),
    "cloned": (Cloned, "layers.0.weight is not set by reset_parameters alone"),
    "drawn": (Drawn, "it draws random numbers"),
    "from numpy": (FromNumPy, "prior is a Tensor on cpu"),
    "tied": (Tied, "second.weight shares its memory with first.weight"),
    "double": (lambda: nn.Linear(WIDE, 2).double(), "weight is not set by reset_parameters alone"),
    "attention": (lambda: nn.MultiheadAttention(8, 2), "MultiheadAttention has no method reset_parameters"),
    "normed": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, WIDE)),
        "ParametrizationList has no method",
    ),
    "rnn": (lambda: nn.LSTM(WIDE, WIDE), "LSTM keeps weak references to its tensors"),
    "device": (
        lambda: Custom(lambda layer: layer.weight.device.type == "meta" or nn.init.ones_(layer.weight)),
        "it reads the device of a tensor",
    ),
}


def bits(model: nn.Module) -> dict[str, Any]:
    found = dict[str, Any]()
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        plain = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found[name] = (tensor.dtype, tensor.shape, tensor.requires_grad, type(tensor), plain)
    return found


def without_memory(model: nn.Module) -> int:
    return sum(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("name", REPEATABLE)
def test_weights_do_not_depend_on_the_order_and_parts_are_those_of_the_whole(name: str) -> None:
    lines = list[str]()
    whole = build(REPEATABLE[name], SEED, notice=lines.append)
    parts = build(REPEATABLE[name], SEED, in_parts=True, notice=lines.append)
    assert lines == []
    assert (without_memory(whole), initial_weights(whole)) == (0, None)
    assert without_memory(parts) == len(bits(whole))
    record = initial_weights(parts)
    assert record is not None
    before = torch.get_rng_state()
    for module in reversed(list(parts.modules())):
        record.fill([module])
    assert torch.equal(torch.get_rng_state(), before)
    assert bits(parts) == bits(whole)


def test_weights_are_those_of_reset_parameters() -> None:
    model, usual = build(Own, SEED), Own()
    assert isinstance(model, Own)
    for name in ("norm.running_var", "norm.weight"):
        assert torch.equal(model.state_dict()[name], usual.state_dict()[name])
    assert torch.equal(model.short, usual.short)
    assert torch.equal(model.get_buffer("mask"), usual.get_buffer("mask"))
    assert abs(float(model.table[1:].detach().std()) - 0.2) < 0.01
    assert float(model.table[0].detach().abs().sum()) == 0
    assert abs(float(model.first.weight.detach().abs().max()) - WIDE**-0.5) < 1e-4
    # In place: every reference sees the numbers.
    assert model.all[0] is model.table
    assert model.table.mark == "kept"  # type: ignore[attr-defined]


def test_two_modules_and_two_seeds_have_other_numbers() -> None:
    model, other = (build(lambda: Custom(), seed) for seed in (1, 2))
    weights = [p.detach() for net in (model, other) for p in (net.layer.weight, net.other.weight)]  # type: ignore[union-attr]
    assert len({float(weight.sum()) for weight in weights}) == 4


@pytest.mark.parametrize("name", WHOLE)
def test_another_constructor_keeps_its_own_numbers_and_a_line_says_why(name: str) -> None:
    make, why = WHOLE[name]
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    expected = make()
    after = torch.rand(3).tolist(), random.random()
    random.seed(SEED)
    lines = list[str]()
    model = build(make, SEED, in_parts=True, notice=lines.append)
    [line] = lines
    assert line.startswith(f"note: each worker starts with the whole network in memory: {why}")
    assert (without_memory(model), initial_weights(model)) == (0, None)
    assert (torch.rand(3).tolist(), random.random()) == after
    assert bits(model) == bits(expected)
    if name == "thread":
        assert float(model.layer.weight.detach().min()) == 1  # type: ignore[union-attr, operator]


def test_an_error_of_the_constructor_is_its_own() -> None:
    def make() -> nn.Module:
        raise ConfigError("mine")

    with pytest.raises(ConfigError, match="mine"):
        build(make, SEED)


HISTORY = Categorical(dim=16, table="a", multi=True, pooling="none", sequence="past", max_values=8)


@pytest.mark.parametrize("mean", [None, 0.2])
@pytest.mark.parametrize("name", models.names())
def test_shipped_models_begin_in_parts(name: str, mean: float | None) -> None:
    features: dict[str, Any] = {one: Categorical(dim=16) for one in "abcdefgh"} | {
        one: Numeric() for one in "xz"
    }
    features |= {"past": HISTORY} if name in (*HISTORIES, *NEXT_ITEM) else {}
    features |= {"next": Categorical(dim=HISTORY.dim, table="past")} if name in NEXT_ITEM else {}
    labels = ["clicked", "bought"] if name in ("mmoe", "ple", "esmm") else ["clicked"]
    schema = Schema([Label(name=one, mean=mean) for one in labels], features)
    options: dict[str, Any] = {"item": ["a", "b", "x"]} if name == "two_tower" else {}
    options |= {"batch_norm": True} if "batch_norm" in models.arguments(name) else {}
    options |= {"context1": ["a"]} if name == "finalmlp" else {}
    lines = list[str]()
    whole, parts = (
        build(lambda: models.create(name, schema, **options), SEED, in_parts=in_parts, notice=lines.append)
        for in_parts in (False, True)
    )
    assert lines == []
    assert without_memory(parts) == len(bits(whole)) > 0
    fill_all(parts)
    assert bits(parts) == bits(whole)
    torch.manual_seed(SEED)
    usual = models.create(name, schema, **options)
    for key, tensor in usual.state_dict().items():  # the same distributions
        other = whole.state_dict()[key].double()
        scale = float(tensor.double().abs().mean())
        torch.testing.assert_close(float(other.abs().mean()), scale, rtol=0.3, atol=0.1 * scale + 1e-9)


class Reads(nn.Module):
    """Reads the weights of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x @ self.layer.weight)
        return y


@pytest.mark.parametrize(
    "make", [Reads, lambda: nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 2))]
)
def test_large_layers_have_weights_while_they_compute(make: Callable[[], nn.Module]) -> None:
    whole, parts = build(make, SEED), build(make, SEED, in_parts=True)
    record = initial_weights(parts)
    assert record is not None
    x = torch.rand(4, WIDE)
    found = record.computed(parts, lambda: parts(x))
    assert torch.equal(found, whole(x))
    assert found.requires_grad
    assert without_memory(parts) == (0 if make is Reads else 2)  # the second layer is small
    with torch.no_grad():
        assert not record.computed(parts, lambda: parts(x)).requires_grad
    fill_all(parts)
    assert bits(parts) == bits(whole)


def test_networks_with_other_weights_have_other_digests() -> None:
    def digest(seed: int, width: int = WIDE) -> bytes:
        record = initial_weights(build(lambda: nn.Linear(WIDE, width), seed, in_parts=True))
        assert record is not None
        return record.digest

    assert digest(1) == digest(1)
    assert len({digest(1), digest(2), digest(1, 2)}) == 3


def test_large_tensors_are_in_pages_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bits(build(Own, SEED))
    monkeypatch.setattr(initial_weights_module, "OWN_PAGES", 1)
    assert bits(build(Own, SEED)) == expected
