"""The network in parts: sharded over its copies, or with each layer split among processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from satrap.checkpoint.saved_dense import DensePart, Region
from satrap.dense.backends.data_parallel import DataParallelBackend, average, finite_sum, squares
from satrap.dense.backends.protocol import DenseState, PendingStep, StepResult, in_memory
from satrap.dense.comm.torch_workers import ConnectedWorkers
from satrap.dense.comm.workers import WorkerGroup
from satrap.dense.compute.fused import keep_impl_flags
from satrap.dense.memory.initial_weights import common
from satrap.dense.memory.optimizer_offload import MakeOptimizer
from satrap.dense.parallel.param_shards import ParamShard, shard_model
from satrap.dense.parallel.tensor_plan import Cut, tensor_plan
from satrap.errors import ConfigError
from satrap.exchange import Exchange
from satrap.runtime.finite_gradients import all_finite


class ShardedBackend(DataParallelBackend):
    """The processes of a mesh hold parts of the network, see `Mesh`.

    `fully_shard` averages the gradients of sharded weights while the backward pass runs; all other gradients
    are averaged here. Then all processes agree on the step. So each process runs every forward and backward
    pass.

    Each optimizer sees its process's elements, as plain tensors. So its update must be elementwise, as in
    SGD, Adagrad, Adam and AdamW.

    Args:
        model: the network; it is sharded in place, with the weights it has in process 0.
        make, clip_norm: see `DataParallelBackend`.
        workers: the processes of the mesh, `ConnectedWorkers`.
        precision: see `DataParallelBackend`; all processes share one scale with "float16", because all accept
            a step or none does.

    Raises:
        ConfigError: the network cannot be sharded this way, see `tensor_plan`, or the optimizer's update is
            not elementwise.
    """

    whole, collective = False, True
    workers: ConnectedWorkers

    def _set_up(self, make: MakeOptimizer | None) -> None:
        if make is not None:
            check_separable(make)
        self._begin_in_parts()
        self._shard(make, tensor_plan(self.model, self.workers.mesh.tensor))
        self._reduce_next(False)

    def _begin_in_parts(self) -> None:
        """Agree with the other processes on the initial weights, which may have no memory yet."""
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        self._record = common(self.model, self.workers)
        self._device = device if self._record is None else self._record.device

    def _shard(
        self, make: MakeOptimizer | None, plan: Mapping[str, Cut], stages: Sequence[nn.Module] = ()
    ) -> None:
        """Keep this process's shards of the network, or of some stages, and make their optimizer."""
        mesh = self.workers.device_mesh(self._device.type)
        self.parameters = []  # else every parameter would stay whole until all are sharded
        self._pieces = shard_model(self.model, self.workers.mesh, mesh, plan, stages, self._record)
        if self._record is not None:
            self._record.fill(self.model.modules(), parameters=False)  # the buffers of all stages
        held = {piece.parameter for piece in self._pieces}
        for module in self.model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter not in held and not parameter.is_meta:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                    setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
        self._trained = [piece for piece in self._pieces if piece.parameter.requires_grad]
        self.parameters = [piece.parameter for piece in self._trained]
        self._locals = [nn.Parameter(piece.local) for piece in self._trained]
        locals_of = dict(zip(map(id, self.parameters), self._locals, strict=True))
        trained = [locals_of.get(id(p), p) for p in self.model.parameters() if p.requires_grad]
        if make is not None and trained:
            self._keep_own(make(trained))
        if self._record is not None:
            self._equalize()

    def _equalize(self) -> None:
        """Make copies equal that several processes computed: their processors may round differently."""
        with self.workers.watched("first weights"):
            for piece in self._pieces:
                piece.equalize()
        self.workers.broadcast(list(self.model.buffers()))

    def _keep_own(self, optimizer: torch.optim.Optimizer) -> None:
        """Reduce the optimizer of the whole network, whose groups are right, to this process's shards."""
        count, mine = 0, set(self._locals)
        self._groups, self._numbers = list[list[int]](), list[int]()
        for group in optimizer.param_groups:
            numbers = list(range(count, count + len(group["params"])))
            pairs = [(n, p) for n, p in zip(numbers, group["params"], strict=True) if p in mine]
            self._groups.append(numbers)
            self._numbers += [n for n, _ in pairs]
            group["params"], count = [p for _, p in pairs], count + len(numbers)
        for parameter in set(optimizer.state) - mine:
            del optimizer.state[parameter]
        self._use(optimizer)

    def forget(self) -> None:
        """See `DenseBackend.forget`."""
        super().forget()
        self.model.zero_grad()  # also drops whole gradients that have not been reduced

    def _reduce_next(self, last: bool) -> None:
        """Set whether the next backward pass is the last of a step, after which gradients are reduced."""
        if isinstance(self.model, FSDPModule) and self.workers.mesh.reduces_once:
            self.model.set_is_last_backward(last)
            self.model.set_reshard_after_backward(last)
            self.model.set_requires_gradient_sync(last)

    def begin(self) -> None:
        """Do nothing: the shards were cut from the network of process 0."""

    def settle(self, exchange: Exchange) -> None:
        """Broadcast the buffers of process 0 to every process; copies of weights are equal already."""
        self.workers.broadcast(list(self.model.buffers()))

    def backward(self, loss: Tensor, share: float, *, last: bool = True) -> None:
        """See `DenseBackend.backward`.

        Sharded gradients are averaged per microbatch, and stay sharded, unless `Mesh.reduces_once`.
        """
        self._reduce_next(last)
        with self.workers.watched("backward pass"):
            super().backward(loss, share)
        self._reduce_next(False)

    def step(self, rows: Sequence[Tensor], lr_scale: float, *, stop: bool = False) -> PendingStep:
        """See `DenseBackend.step`; on return all processes agree on the step."""
        assert self._losses, "every process takes part in the backward pass"
        total = self._mean_loss()
        for local, piece in zip(self._locals, self._trained, strict=True):
            local.data, local.grad = piece.local, piece.gradient
            piece.parameter.grad = None  # its memory is free once an average has replaced it
        self._average()
        gradients = [local.grad for local in self._locals if local.grad is not None]
        of_rows = [row.grad for row in rows if row.grad is not None]
        right = finite_sum(total, gradients) and all_finite(rows)
        self.scale.divide([*gradients, *of_rows])
        agreed = self._agree_on(StepResult(right, total.item() if right else 0.0, stop), of_rows)
        return PendingStep(agreed.accepted, partial(self._finish, agreed, lr_scale))

    def _average(self) -> None:
        """Average the gradients that `fully_shard` has not, over the copies of their shard."""
        tensor = self.workers.tensor
        groups: list[tuple[WorkerGroup, Callable[[ParamShard], bool]]] = [
            (self.workers.data, lambda piece: not piece.sharded and piece.tensor_dim is not None),
            (self.workers, lambda piece: not piece.sharded and piece.tensor_dim is None),
            # Equal except for rounding; averaging removes the difference, so that the copies stay equal.
            (tensor, lambda piece: piece.sharded and piece.tensor_dim is None),
        ]
        for group, belongs in groups:
            chosen = [
                local for local, piece in zip(self._locals, self._trained, strict=True) if belongs(piece)
            ]
            if chosen and group.size > 1:
                average(chosen, group)

    def _agree_on(self, own: StepResult, rows: Sequence[Tensor]) -> StepResult:
        """Return the common verdict of all processes on the step, and clip."""
        mesh, total = self.workers.mesh, 0.0
        if self.clip_norm is not None and own.accepted:
            total = squares(rows) / (mesh.data**2 * mesh.tensor)
            for local, piece in zip(self._locals, self._trained, strict=True):
                if local.grad is not None:
                    total += squares([local.grad]) / self._copies(piece)
        totals = torch.tensor([not own.accepted, own.loss, own.stop, total], dtype=torch.float64)
        self.workers.sum(totals)
        refused, loss, stop, total = totals.tolist()
        if self.clip_norm is not None and not refused:
            factor = min(self.clip_norm / (math.sqrt(total) + 1e-6), 1.0)
            for gradient in (*(local.grad for local in self._locals if local.grad is not None), *rows):
                gradient.mul_(factor)
        return StepResult(refused == 0, loss / mesh.size, stop > 0)

    def _copies(self, piece: ParamShard) -> int:
        """Return how many processes hold the same elements of a parameter."""
        mesh = self.workers.mesh
        return (
            mesh.data
            // (mesh.shards if piece.sharded else 1)
            * (mesh.tensor if piece.tensor_dim is None else 1)
        )

    @property
    def _first(self) -> bool:
        """Whether this process writes tensors that several processes hold in common to a checkpoint."""
        return self.workers.data.rank == self.workers.tensor.rank == 0

    def part(self) -> DensePart:
        """See `DenseBackend.part`; the first of several copies returns it."""
        pieces = {id(piece.parameter): piece for piece in self._pieces}
        weights, regions = dict[str, Tensor](), dict[str, Region]()
        for name, tensor in self._tensors().items():
            piece = pieces.get(id(tensor))
            if piece is None and self._first:
                weights[name] = tensor.detach()
            elif piece is not None and piece.first:
                weights[name], regions[name] = piece.local, piece.region[:2]
        if self.optimizer is None:
            return DensePart(weights, {}, regions)
        saved = self._numbered(self.optimizer.state_dict())
        state = dict[int, dict[str, Any]]()
        for number, piece, local in zip(
            self._numbers, self._pieces_in_order(), self._in_order(), strict=True
        ):
            if not piece.first or number not in saved["state"]:
                continue
            state[number] = saved["state"][number]
            regions |= {
                f"{number}.{key}": piece.region[:2]
                for key, value in state[number].items()
                if isinstance(value, Tensor) and value.ndim and value.shape == local.shape
            }
        return DensePart(weights, {**saved, "state": state}, regions)

    def _numbered(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the optimizer state with base rates and with the numbering of the whole network."""
        for group, rate, numbers in zip(found["param_groups"], self._base_rates, self._groups, strict=True):
            group["lr"], group["params"] = rate, numbers
        state = {self._numbers[number]: entry for number, entry in found["state"].items()}
        return {**found, "state": state}

    def _tensors(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of which this process holds all or a part, by name."""
        return dict(self.model.state_dict(keep_vars=True))

    def _in_order(self) -> list[nn.Parameter]:
        """Return the parameters in the order in which the optimizer numbers them."""
        assert self.optimizer is not None
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _pieces_in_order(self) -> list[ParamShard]:
        """Return the trained parameter shards in the order in which the optimizer numbers them."""
        shards = dict(zip(map(id, self._locals), self._trained, strict=True))
        return [shards[id(local)] for local in self._in_order()]

    def restore(self, whole: DenseState) -> None:
        """Restore this process's part of a network."""
        pieces = {id(piece.parameter): piece for piece in self._pieces}
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                piece = pieces.get(id(tensor))
                if whole.partial and name not in whole.weights:
                    continue
                if piece is None:
                    tensor.copy_(in_memory(whole.weights[name]))
                else:
                    piece.local.copy_(piece.cut(whole.weights[name]))
        if self.optimizer is None or not whole.optimizer:
            return
        groups_here, saved = self.optimizer.state_dict()["param_groups"], whole.optimizer["state"]
        numbered = enumerate(zip(self._numbers, self._pieces_in_order(), strict=True))
        groups = [
            {**group, "params": here["params"]}
            for group, here in zip(
                keep_impl_flags(whole.optimizer["param_groups"], groups_here), groups_here, strict=True
            )
        ]
        if whole.partial:
            groups = groups_here
        state = {number: piece.cut_state(saved[of]) for number, (of, piece) in numbered if saved.get(of)}
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._base_rates = [g["lr"] for g in self.optimizer.param_groups]


def check_separable(make: MakeOptimizer) -> None:
    """Raise `ConfigError` unless an optimizer updates two halves as it updates the whole."""
    random = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(4, 4, generator=random), torch.randn(2, 4, 4, generator=random)
    results = list[Tensor]()
    for parts in (1, 2):
        parameters = [nn.Parameter(part.clone()) for part in start.chunk(parts)]
        optimizer = make(parameters)
        for gradient in gradients:
            for parameter, part in zip(parameters, gradient.chunk(parts), strict=True):
                parameter.grad = part.clone()
            optimizer.step()
        results.append(torch.cat([parameter.detach() for parameter in parameters]))
    if not torch.allclose(results[0], results[1], rtol=1e-5, atol=1e-7):
        raise ConfigError(
            f"{type(optimizer).__name__} cannot be combined with a sharded network",
            why="its update needs whole weights, and each worker has only a part of them",
            fix="use SGD, Adagrad, Adam or AdamW, or a mesh without tensor and sharded",
        )
