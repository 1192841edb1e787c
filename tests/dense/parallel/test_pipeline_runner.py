"""What stages hand on; the passes themselves are in `tests/cluster/test_pipelines.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.dense import Mesh
from satrap.dense.compute.precision import autocast, computed
from satrap.dense.parallel.pipeline_runner import Boundary, PipelineRunner, Stage, _Received, _Sent
from satrap.dense.parallel.stages import stages_of
from satrap.errors import ConfigError


def test_a_tensor_filled_up_and_cut_off_is_the_same_and_so_is_its_gradient() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    sent = _Sent.apply(x, 5)
    assert sent.shape == (5, 2)
    assert sent[3:].eq(0).all()
    received = _Received.apply(sent, 3)
    torch.testing.assert_close(received, x)
    (received**3).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


def test_a_gradient_to_be_sent_is_contiguous() -> None:
    """That of an operand of `cat` is a view with strides, which cannot be sent."""
    x = torch.randn(3, 2, requires_grad=True)
    strides = list[bool]()
    x.register_hook(lambda gradient: strides.append(gradient.is_contiguous()))
    (torch.cat([_Received.apply(x, 3), torch.ones(3, 1)], dim=1) * 2).sum().backward()
    assert strides == [True]


def test_a_boundary_has_samples_first() -> None:
    boundary = Boundary.of(torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), 2)
    assert boundary == Boundary((3,), torch.float64, True)
    example = boundary.example(7)
    assert (example.shape, example.dtype, example.requires_grad) == ((7, 3), torch.float64, True)
    assert not Boundary.of(torch.zeros(2, dtype=torch.int64), 2).example(1).requires_grad
    for wrong in (torch.zeros(3, 2), torch.zeros(())):
        with pytest.raises(ConfigError, match="would send a tensor of shape"):
            Boundary.of(wrong, 2)


@pytest.fixture
def alone() -> Iterator[Any]:
    """The group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class TwoWays(nn.Module):
    """Its first stage hands on two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(10, 1)

    def chain(self) -> list[Any]:
        return [
            EmbeddedBatch.flat,
            self.first,
            (lambda x: (x, self.second(x)), self.second),
            (lambda *both: self.head(torch.cat(both, 1)), self.head),
        ]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        x = self.first(batch.flat())
        logits: Tensor = self.head(torch.cat([x, self.second(x)], 1))
        return logits


def made(size: int) -> EmbeddedBatch:
    return EmbeddedBatch(size, {}, torch.randn(size, 5), labels=torch.rand(size, 1))


class Parts(list[EmbeddedBatch]):
    """Microbatches without rows."""

    rows = ()

    def __init__(self, batches: list[EmbeddedBatch]) -> None:
        super().__init__(batches)
        self.sizes, self.shares = [batch.size for batch in batches], [1.0] * len(batches)


@pytest.mark.pytorch("2.13")
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_stages_of_one_process_have_the_gradients_of_the_whole_network(
    alone: Any, precision: str, recomputes: bool
) -> None:
    """Two tensors pass the boundary, and parts differ in size; a later batch has a larger part."""
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    model = TwoWays()
    mesh = Mesh(stages_per_rank=2, schedule="looped_bfs", microbatches=2, stages=("head",))
    with autocast(precision, cpu):
        cutting = stages_of(model, mesh, made(4))
    boundaries = [[Boundary.of(tensor, 4) for tensor in one] for one in cutting.handed]
    assert [len(one) for one in boundaries] == [2, 1]
    assert str(boundaries[0][0].dtype) == f"torch.{precision}"
    how: dict[str, Any] = {"precision": precision, "recomputes": recomputes}
    calls = list[int]()
    model.head.register_forward_pre_hook(lambda *_: calls.append(1))
    passes = PipelineRunner(
        {
            0: Stage(cutting.stages[0], first=True, last=False, **how),
            1: Stage(cutting.stages[1], first=False, last=True, **how),
        },
        boundaries,
        mesh,
        group=alone,
        device=cpu,
        backward=True,
    )
    for sizes in ((4, 2), (1, 6)):
        parts = Parts([made(size) for size in sizes])

        def loss(number: int, logits: Tensor, parts: Parts = parts) -> Tensor:
            return (logits - parts[number].labels).square().sum()  # type: ignore[operator]

        model.zero_grad()
        calls.clear()
        logits = passes.run(parts, loss)
        assert len(calls) == len(parts) * (1 + recomputes)
        mine = [p.grad for p in model.parameters()]
        model.zero_grad()
        whole = [computed(lambda part=part: model(part), precision, cpu) for part in parts]  # type: ignore[misc]
        for number, one in enumerate(whole):
            loss(number, one).backward()  # type: ignore[no-untyped-call]
        for one, other in zip([*logits, *mine], [*whole, *(p.grad for p in model.parameters())], strict=True):
            torch.testing.assert_close(one, other, check_dtype=False)
