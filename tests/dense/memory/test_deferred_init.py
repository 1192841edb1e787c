"""Tensors that are computed later have the bytes that the constructor would have given them at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from satrap import models
from satrap.dense.memory import deferred_init as deferral_module
from satrap.dense.memory.deferred_init import deferral, deferred, fill_all
from satrap.errors import ConfigError
from satrap.models.layers.common import mlp
from satrap.schema import Categorical, Numeric, Schema

WIDE = 300  # so that a square matrix is large


pytestmark = pytest.mark.usefixtures("frozen_imports")


class ByHand(nn.Module):
    """Resets its weights itself, in parts, in another order, and from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE, bias=False)
        self.table = nn.Parameter(torch.randn(WIDE, WIDE) * 0.01)
        self.register_buffer("mask", torch.ones(WIDE, WIDE).tril(), persistent=False)
        self.register_buffer("turns", torch.outer(torch.arange(WIDE), torch.arange(WIDE)).float())
        nn.init.orthogonal_(self.second.weight)
        with torch.no_grad():
            self.first.weight[::2].normal_(0, 0.1)
            self.first.weight[7] = torch.arange(WIDE)
            self.table.add_(self.second.weight.t())
            self.second.weight.mul_(2)
            nn.init.trunc_normal_(self.second.weight[:, :9])
            if self.table.sum() > 0:
                self.table.mul_(-1)
            self.first.bias.fill_(self.table.abs().max().item())


class Shared(nn.Module):
    """Uses a weight twice, keeps one in a list and marks one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.second.weight = self.first.weight
        self.all = [self.first.weight]
        self.first.weight.mark = "kept"  # type: ignore[attr-defined]
        self.short = nn.Parameter(torch.empty(WIDE, WIDE, dtype=torch.float16), requires_grad=False)
        nn.init.uniform_(self.short)


class Cloned(nn.Module):
    """Layers that are copies of one, and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 600)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_normal_(parameter, generator=torch.Generator().manual_seed(7))


class OtherRandom(nn.Module):
    """Draws from NumPy and Python, and from seeds of its own in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDE, WIDE)
        with torch.random.fork_rng():
            torch.manual_seed(random.randrange(1000))
            self.second = nn.Linear(WIDE, WIDE)
        drawn = torch.from_numpy(np.random.rand(WIDE, WIDE).astype(np.float32))
        drawn += 1
        self.third = nn.Parameter(drawn)
        self.fourth = nn.Parameter(torch.zeros(WIDE, WIDE))
        self.fourth.data = self.fourth.data + drawn
        drawn += 1
        self.last = nn.Linear(WIDE, WIDE)


class Plain(nn.Module):
    """Has tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain = nn.Linear(WIDE, WIDE), [torch.randn(WIDE, WIDE)]
        self.register_buffer("seen", self.plain[0] + 1)


DEFERRED: dict[str, Callable[[], nn.Module]] = {
    "by hand": ByHand,
    "shared": Shared,
    "cloned": Cloned,
    "plain": Plain,
    "other random": OtherRandom,
    "mlp": lambda: mlp(WIDE, [WIDE, WIDE, 3], batch_norm=True)[0],
    "normed": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, WIDE)),
    "embedding": lambda: nn.Embedding(WIDE, WIDE, padding_idx=3),
}


class OneMemory(nn.Module):
    """Has two weights in one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(WIDE, WIDE))
        self.some = nn.Parameter(self.both.detach()[: WIDE - 1])


class InNumPy(nn.Module):
    """Sets its weights by NumPy, in the memory of the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)
        self.layer.weight.detach().numpy()[:] = 3


class InAThread(nn.Module):
    """Sets its weights in another thread, which takes no notes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(nn.init.ones_, self.layer.weight).result()


class Chance(nn.Module):
    """Draws numbers whose count nothing here knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)
        with torch.no_grad():
            self.layer.weight.bernoulli_(self.layer.weight.abs())


class Doubled(nn.Module):
    """Changes the type of its weights at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)
        self.double()


WHOLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "one memory": (OneMemory, "two of its tensors share memory"),
    "numpy": (InNumPy, "RuntimeError: "),
    "thread": (InAThread, "aten.fill_.Scalar on a weight that has no memory yet"),
    "chance": (Chance, "aten.bernoulli_.Tensor draws random numbers in a way that is not supported"),
    "doubled": (Doubled, "RuntimeError: _apply(): Couldn't swap Linear.weight"),
    "rnn": (lambda: nn.LSTM(WIDE, WIDE), "it keeps weak references to its tensors"),
    "spectral": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDE, WIDE)),
        "aten.set_.source_Tensor cannot be deferred",
    ),
}


def bits(model: nn.Module) -> dict[str, Any]:
    found = dict[str, Any]()
    others = [("plain", tensor) for tensor in getattr(model, "plain", [])]
    for name, tensor in [*model.named_parameters(), *model.named_buffers(), *others]:
        plain = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found[name] = (tensor.dtype, tensor.shape, tensor.requires_grad, type(tensor), plain)
    return found


def seeded() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def draws() -> list[Any]:
    """What the generators would give next."""
    return [torch.rand(3).tolist(), random.random(), np.random.rand()]


def without_memory(model: nn.Module) -> int:
    return sum(type(t).__name__ == "FakeTensor" for t in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("name", DEFERRED)
def test_tensors_get_the_bytes_of_the_constructor_in_any_order(name: str) -> None:
    seeded()
    expected = DEFERRED[name]()
    after = draws()
    seeded()
    lines = list[str]()
    model = deferred(DEFERRED[name], lines.append)
    assert lines == []
    assert without_memory(model) > 0
    assert draws() == after
    record = deferral(model)
    assert record is not None
    before = torch.get_rng_state()
    for module in reversed(list(model.modules())):
        record.fill([module])
    assert torch.equal(torch.get_rng_state(), before)
    assert without_memory(model) == 0
    assert bits(model) == bits(expected)


@pytest.mark.parametrize("name", WHOLE)
def test_what_cannot_be_put_off_is_made_whole_and_a_line_says_why(name: str) -> None:
    make, why = WHOLE[name]
    seeded()
    expected = make()
    after = draws()
    seeded()
    lines = list[str]()
    model = deferred(make, lines.append)
    [line] = lines
    assert line.startswith(f"note: each worker starts with the whole network in memory: {why}")
    assert (without_memory(model), deferral(model)) == (0, None)
    assert draws() == after
    assert bits(model) == bits(expected)


def test_an_error_of_the_constructor_is_its_own() -> None:
    def make() -> nn.Module:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        deferred(make)


HISTORY = Categorical(dim=16, multi=True, pooling="none", sequence="past", max_values=8)


@pytest.mark.parametrize("name", models.names())
def test_shipped_models_get_the_bytes_of_the_constructor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nearly all their tensors are large, but for the pairs of a DLRM, of which two views stay.
    monkeypatch.setattr(deferral_module, "LARGE", 100 if name == "dlrm" else 2)
    features: dict[str, Any] = {one: Categorical(dim=16) for one in "abcdefgh"} | {
        one: Numeric() for one in "xz"
    }
    features |= {"past": HISTORY} if name == "hstu" else {}
    labels = ["clicked", "bought"] if name in ("mmoe", "ple") else ["clicked"]
    schema = Schema(labels, features)
    seeded()
    options = {"item": ["a", "b", "x"]} if name == "two_tower" else {}
    expected = models.create(name, schema, **options)
    seeded()
    lines = list[str]()
    model = deferred(lambda: models.create(name, schema, **options), lines.append)
    assert lines == []
    assert without_memory(model) > 0
    fill_all(model)
    assert bits(model) == bits(expected)


@torch.library.custom_op("satrap_tests::secret_noise", mutates_args=())
def secret_noise(like: torch.Tensor) -> torch.Tensor:
    """Draws without saying so."""
    return torch.rand(like.shape)


@secret_noise.register_fake
def _(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape)


class Secret(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(secret_noise(torch.ones(WIDE, WIDE)))


def test_an_operation_that_draws_in_secret_is_an_error_before_training() -> None:
    model = deferred(Secret)
    assert deferral(model) is not None
    with pytest.raises(ConfigError, match="drew random numbers without declaring it") as caught:
        fill_all(model)
    assert "train without dense.mesh" in str(caught.value)


def test_networks_with_other_first_values_have_other_digests() -> None:
    def digest(seed: int, bias: float = 0.0) -> bytes:
        def make() -> nn.Module:
            torch.manual_seed(seed)
            model = nn.Linear(WIDE, WIDE)
            model.bias.data[3] = bias  # a small tensor: it has its memory at once
            return model

        model = deferred(make)
        record = deferral(model)
        assert record is not None
        return record.digest(model)

    assert digest(1) == digest(1)
    assert len({digest(1), digest(2), digest(1, bias=1.0)}) == 3
