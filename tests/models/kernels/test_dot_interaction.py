"""The fused dot interaction against the layer's own operations in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from benchmarks.gpu import dot_interaction as benchmark
from torch import Tensor

from satrap.models import DLRM
from satrap.models.kernels import dot_interaction as kernels
from satrap.models.layers import interaction
from satrap.models.layers.interaction import DotInteraction
from tests.models.helpers import make_batch, make_schema

pytestmark = pytest.mark.triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Relative errors: of a sum in float32, and of numbers that are cut off, as the interpreter does."""

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer takes the kernels, in the interpreter too."""
    monkeypatch.setattr(interaction, "_KERNELS_ON", {DEVICE})


def inputs(
    size: int, fields: int, dim: int, first: bool, block_type: torch.dtype, dtype: torch.dtype
) -> list[Tensor]:
    """Numbers that both types can represent."""
    torch.manual_seed(fields * dim + size)
    shapes = [((size, fields - first, dim), block_type), ((size, dim), dtype)][: 1 + first]
    made = [torch.randn(shape, device=DEVICE).to(dtype).to(block_type) for shape, _ in shapes]
    return [one.to(kind).requires_grad_() for one, (_, kind) in zip(made, shapes, strict=True)]


def expected(given: list[Tensor], grad: Tensor) -> Iterator[Tensor]:
    """The result and the gradients, in float64."""
    block, *first = [tensor.detach().double().requires_grad_() for tensor in given]
    layer = DotInteraction(block.shape[1] + len(first)).to(DEVICE)
    result = layer(block, *first)
    yield result
    yield from torch.autograd.grad(result, [block, *first], grad.double())


def compare(given: list[Tensor], result: Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    grad = torch.randn(result.shape, device=DEVICE).to(dtype)
    found = [result, *torch.autograd.grad(result, given, grad)]
    for number, (one, other) in enumerate(zip(found, expected(given, grad), strict=True)):
        assert one.dtype == (dtype if number == 0 else given[number - 1].dtype)
        scale = 1.0 + other.abs().max().item() if other.numel() else 1.0
        error = max(ROUNDING[dtype], ROUNDING[one.dtype])
        torch.testing.assert_close(one.double(), other, rtol=error, atol=1e-6 * scale)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("fields", "dim"), [(2, 16), (3, 64), (16, 20), (17, 16), (27, 128), (33, 40), (64, 64)]
)
def test_every_shape(fused: None, fields: int, dim: int, first: bool) -> None:
    given = inputs(2, fields, dim, first, torch.float32, torch.float32)
    compare(given, DotInteraction(fields).to(DEVICE)(*given), torch.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("block", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("fields", "dim"), [(3, 20), (27, 128), (64, 256)])
def test_every_type(fused: None, fields: int, dim: int, block: str, dtype: str) -> None:
    given = inputs(3, fields, dim, True, TYPES[block], TYPES[dtype])
    compare(given, DotInteraction(fields).to(DEVICE)(*given), TYPES[dtype])


@pytest.mark.parametrize("size", [0, 1, kernels.SAMPLES - 1, kernels.SAMPLES, 2 * kernels.SAMPLES + 1])
def test_every_size_of_a_batch(fused: None, size: int) -> None:
    given = inputs(size, 5, 16, True, torch.float32, torch.float32)
    compare(given, DotInteraction(5).to(DEVICE)(*given), torch.float32)


def test_gradients_are_differences(fused: None) -> None:
    """The products are quadratic, so a central difference of any width is exact but for rounding."""
    given = inputs(4, 6, 16, True, torch.float32, torch.float32)
    weights = torch.randn(4, 16 + 15, device=DEVICE)

    def weighted(values: list[Tensor]) -> Tensor:
        return (DotInteraction(6).to(DEVICE)(*values) * weights).sum()

    gradients = torch.autograd.grad(weighted(given), given)
    steps = [torch.randn_like(tensor) for tensor in given]
    moved = [weighted([x.detach() + sign * s for x, s in zip(given, steps, strict=True)]) for sign in (1, -1)]
    slope = sum((g * s).sum() for g, s in zip(gradients, steps, strict=True))
    torch.testing.assert_close(slope, (moved[0] - moved[1]) / 2, rtol=1e-4, atol=1e-4)


def test_views_and_expanded_gradients(fused: None) -> None:
    wide = torch.randn(2, 32, 6, device=DEVICE, requires_grad=True)
    block, first = wide.transpose(1, 2)[:, 1:], wide[:, :, 0]
    [found] = torch.autograd.grad(DotInteraction(6).to(DEVICE)(block, first).sum(), wide)
    alone = [block.detach().contiguous().requires_grad_(), first.detach().contiguous().requires_grad_()]
    others, own = torch.autograd.grad(DotInteraction(6).to(DEVICE)(*alone).sum(), alone)
    assert torch.equal(found, torch.cat([own[:, None], others], dim=1).transpose(1, 2))


def test_two_runs_are_equal(fused: None) -> None:
    given = inputs(2, 8, 16, True, torch.bfloat16, torch.bfloat16)
    results = [DotInteraction(8).to(DEVICE)(*given) for _ in range(2)]
    grads = [torch.autograd.grad(result, given, results[0].detach()) for result in results]
    assert torch.equal(*results)
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


@pytest.mark.parametrize("first", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("block", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("autocast", [False, True])
def test_types_are_those_of_the_layer_without_kernels(
    monkeypatch: pytest.MonkeyPatch, block: str, first: str | None, autocast: bool
) -> None:
    types = TYPES | {"float64": torch.float64}
    given = [torch.randn(2, 4 - (first is not None), 16, device=DEVICE).to(types[block])]
    if first is not None:
        given.append(torch.randn(2, 16, device=DEVICE).to(types[first]))
    found = []
    for devices in (set[str](), {DEVICE}):
        monkeypatch.setattr(interaction, "_KERNELS_ON", devices)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            found.append(DotInteraction(4).to(DEVICE)(*given))
    assert found[0].dtype == found[1].dtype
    short = found[0].dtype == torch.bfloat16 or autocast
    torch.testing.assert_close(*found, rtol=2**-7 if short else 1e-6, atol=0.2 if short else 1e-5)


@pytest.mark.parametrize(("fields", "dim"), [(65, 16), (3, 15), (3, 257)])
def test_other_shapes_take_the_operations(
    fused: None, monkeypatch: pytest.MonkeyPatch, fields: int, dim: int
) -> None:
    monkeypatch.setattr(kernels, "dot_interaction", None)
    vectors = torch.randn(2, fields, dim, device=DEVICE)
    assert DotInteraction(fields).to(DEVICE)(vectors).shape == (2, fields * (fields - 1) // 2)


def test_a_device_without_a_compiler_takes_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr(interaction, "_KERNELS_ON", {DEVICE})
    monkeypatch.setattr(kernels, "dot_interaction", fails)
    kernels._tried.cache_clear()
    vectors = torch.randn(2, 3, 16, device=DEVICE)
    try:
        with pytest.warns(RuntimeWarning, match="Failed to find C compiler.; install a C compiler"):
            assert DotInteraction(3).to(DEVICE)(vectors).shape == (2, 3)
        assert DotInteraction(3).to(DEVICE)(vectors).shape == (2, 3)  # known now
    finally:
        kernels._tried.cache_clear()


def test_operators_are_as_pytorch_expects() -> None:
    block, first = inputs(2, 4, 16, True, torch.float32, torch.float32)
    for given in ((block, None, torch.float32), (block, first, torch.float32)):
        torch.library.opcheck(kernels.dot_interaction, given, test_utils=CHECKS)


def test_compiled_networks_call_the_kernels(fused: None) -> None:
    given = inputs(3, 5, 16, True, torch.float32, torch.float32)
    layer = DotInteraction(5).to(DEVICE)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = [layer(*given), compiled(*given)]
    assert torch.equal(*results)
    one, other = [torch.autograd.grad(result.square().sum(), given) for result in results]
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_an_exported_network_does_not_need_the_kernels(fused: None) -> None:
    program = torch.export.export(DotInteraction(3).to(DEVICE), (torch.randn(2, 3, 16, device=DEVICE),))
    assert "satrap" not in str(program.graph)


@pytest.mark.parametrize("numbers", [0, 2])
def test_dlrm_learns_the_same(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    torch.manual_seed(0)
    schema = make_schema(dims=(16, 16, 16), numbers=numbers)
    model = DLRM(schema, hidden=[9], bottom=[4]).to(DEVICE)
    batch = make_batch(model, schema)
    batch.numeric = batch.numeric.to(DEVICE)
    batch.embeddings = {
        name: row.detach().to(DEVICE).requires_grad_() for name, row in batch.embeddings.items()
    }
    found = []
    for devices in (set[str](), {DEVICE}):
        monkeypatch.setattr(interaction, "_KERNELS_ON", devices)
        logits = model(batch)
        leaves = [*batch.embeddings.values(), *model.parameters()]
        found.append([logits, *torch.autograd.grad(logits.square().sum(), leaves)])
    torch.testing.assert_close(found[0], found[1])


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(benchmark, "SWEEP", {"samples": (1, 2), "warps": (1,), "stages": (1,)})
    found = benchmark.measure((2,), 3, 16, DEVICE, copied=1000, sweep=True)
    assert len(found["ways"][2]) == 4 + 2 * 2
    assert all(way["ms"] > 0 and way["share"] > 0 for way in found["ways"][2].values())
    assert "PyTorch's operations" in capsys.readouterr().out
    assert {"cuda"} == interaction._KERNELS_ON
