"""Cuts a network into pipeline stages, which compute one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from satrap.dense.compute.support import check_no_batch_norm, check_pytorch
from satrap.dense.parallel.tensor_plan import Cut, tensor_plan
from satrap.errors import ConfigError, did_you_mean
from satrap.settings.mesh import Mesh

PYTORCH = "2.13"
"""The oldest version whose pipelining is tested here."""

Step = Callable[..., Any]
"""Part of a network; it gets the result of the previous part, a tuple of tensors as several arguments."""


@dataclass(frozen=True, slots=True)
class ChainStep:
    """Steps that stay together: one with weights, and the steps without weights that follow it.

    Args:
        name: name of the first module with weights, in the network.
        modules: the modules that these steps use.
        steps: the steps.
    """

    name: str
    modules: tuple[nn.Module, ...]
    steps: tuple[Step, ...]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its weights, each once."""
        return list(dict.fromkeys(p for module in self.modules for p in module.parameters()))


def chain_steps(model: nn.Module, mesh: Mesh) -> list[ChainStep]:
    """Return the links of a network that can be cut into the stages of a mesh.

    A method `chain` of the model returns its steps, in order: the first gets the `EmbeddedBatch`, each other
    step the result of the previous one, and the last returns the logits. A step is a module of the model, a
    function without weights, or a tuple of a function and the modules that it uses. An `nn.Sequential` is its
    own chain. Boundaries between stages must be tensors whose first dimension is the samples.

    Raises:
        ConfigError: PyTorch is too old, the chain is missing or too short, or the model uses batch
            normalization.
    """
    check_pytorch(
        PYTORCH, "mesh.pipeline", "older versions reject some tensors between stages and are not tested"
    )
    check_no_batch_norm(
        model, "mesh.pipeline", "each microbatch would be normalized separately", "use mesh.data"
    )
    links = _links(model)
    if len(links) < mesh.stage_count:
        each = f" with {mesh.per_rank} stages each" * (mesh.per_rank > 1)
        raise ConfigError(
            f"mesh.pipeline is {mesh.pipeline}{each}, but {type(model).__name__} has {len(links)} layers to"
            " split at",
            why="each stage needs at least one layer",
            fix=f"use {len(links)} stages or fewer, or a deeper network",
        )
    return links


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A network in stages.

    Args:
        stages: the links of each stage.
        handed: the output of each stage for the trial batch.
    """

    stages: list[list[ChainStep]]
    handed: list[tuple[Tensor, ...]]


def stages_of(model: nn.Module, mesh: Mesh, batch: Any) -> StagePlan:
    """Cut a network into the stages of a mesh, and run them once.

    Args:
        model: the network, see `chain_steps`.
        mesh: `stages` names the first module of each stage but the first. Without names, the cut minimizes
            the operations of the most costly stage. Only the operations of matrix products in the forward
            pass of the batch are counted, so all processes choose the same cut; a network without
            matrix products is measured by its parameters.
        batch: input of the first step; a few samples are enough.

    Raises:
        ConfigError: see `chain_steps`; or weights outside the chain or in two stages, a name that is not in
            the chain, or something other than tensors between stages.
    """
    links, outputs = chain_steps(model, mesh), batch
    made, costs = list[Any](), list[int]()
    for link in links:
        with FlopCounterMode(display=False) as counter:
            outputs = compute(link.steps, outputs)
        made.append(outputs)
        costs.append(counter.get_total_flops())
    if not any(costs):
        costs = [sum(p.numel() for p in link.parameters) for link in links]
    starts = [0, *_named(links, mesh.stages)] if mesh.stages else _balanced(costs, mesh.stage_count)
    ends = [*starts[1:], len(links)]
    stages = [links[start:end] for start, end in zip(starts, ends, strict=True)]
    _check_weights(model, stages)
    return StagePlan(stages, [tensors(made[end - 1]) for end in ends])


def stage_cuts(model: nn.Module, mesh: Mesh, stages: Sequence[Sequence[ChainStep]]) -> dict[str, Cut]:
    """Return how the layers of all stages are split: the `tensor_plan`, with each pair in one stage.

    Raises:
        ConfigError: see `tensor_plan`.
    """
    of_stage = {
        used: number
        for number, stage in enumerate(stages)
        for link in stage
        for module in link.modules
        for used in module.modules()
    }
    numbers = {name: of_stage[module] for name, module in model.named_modules() if module in of_stage}
    return tensor_plan(model, mesh.tensor, numbers)


def described(stages: Sequence[Sequence[ChainStep]]) -> str:
    """Return a text that lists the modules of each stage and its number of parameters."""
    counts = [sum(p.numel() for link in stage for p in link.parameters) for stage in stages]
    names = [" ".join(link.name for link in stage) for stage in stages]
    return " | ".join(f"{name} ({count:,})" for name, count in zip(names, counts, strict=True))


def _links(model: nn.Module) -> list[ChainStep]:
    """Return the chain of a model as links, each beginning with weights."""
    chain = model.chain if hasattr(model, "chain") else model.children
    if not callable(chain) or not (hasattr(model, "chain") or isinstance(model, nn.Sequential)):
        raise ConfigError(
            f"{type(model).__name__} cannot be split into stages: it has no method chain",
            why="a pipeline needs the order in which the layers compute",
            fix="use dnn, dcnv2, dlrm or another model with a method chain, add the method, or use mesh.data",
        )
    names = {module: name for name, module in model.named_modules()}
    links, name = list[ChainStep](), ""
    steps, used = list[Step](), list[nn.Module]()
    for step, modules in map(_taken_apart, chain()):
        if unknown := [module for module in modules if module not in names]:
            raise ConfigError(
                f"chain of {type(model).__name__} has a {type(unknown[0]).__name__} that is not in the model",
                fix="make it an attribute of the model",
            )
        weights = [module for module in modules if any(True for _ in module.parameters())]
        if weights and name:
            links.append(ChainStep(name, tuple(used), tuple(steps)))
            steps, used = [], []
        if weights:
            name = names[weights[0]]
        steps.append(step)
        used += modules
    return [*links, ChainStep(name, tuple(used), tuple(steps))]


def _taken_apart(step: Any) -> tuple[Step, tuple[nn.Module, ...]]:
    """Return the function of a step, and the modules that it uses."""
    if isinstance(step, nn.Module):
        return step, (step,)
    function, *modules = step if isinstance(step, tuple) else (step,)
    if not callable(function) or not all(isinstance(module, nn.Module) for module in modules):
        raise ConfigError(
            f"chain has {step!r}"[:200],
            why="a step must be a module, a function, or a tuple of a function and modules",
            fix="correct the model's method chain",
        )
    return function, tuple(modules)


def _named(links: Sequence[ChainStep], given: Sequence[str]) -> list[int]:
    """Return the numbers of the links with these names."""
    names = [link.name for link in links]
    starts = list[int]()
    for name in given:
        if name not in names:
            raise ConfigError(
                f"stages names {name!r}, but no stage can begin there",
                fix=f"{did_you_mean(name, names)}modules: {', '.join(names)}"[:200],
            )
        starts.append(names.index(name))
    if starts != sorted(set(starts) - {0}):
        raise ConfigError(
            f"stages cannot begin with {', '.join(given)}",
            why="stage names must be in the order of the network, each once, without its first module",
            fix=f"choose among {', '.join(names[1:])}"[:200],
        )
    return starts


def _balanced(costs: Sequence[int], parts: int) -> list[int]:
    """Return the first links of stages such that the most costly stage costs least."""

    @cache
    def best(first: int, left: int) -> tuple[int, tuple[int, ...]]:
        if left == 1:
            return sum(costs[first:]), (first,)
        options = list[tuple[int, tuple[int, ...]]]()
        for end in range(first + 1, len(costs) - left + 2):
            rest, starts = best(end, left - 1)
            options.append((max(sum(costs[first:end]), rest), (first, *starts)))
        return min(options)

    return list(best(0, parts)[1])


def _check_weights(model: nn.Module, stages: Sequence[Sequence[ChainStep]]) -> None:
    """Raise `ConfigError` unless each parameter is in exactly one stage."""
    uses = Counter(p for stage in stages for p in {p for link in stage for p in link.parameters})
    for name, parameter in model.named_parameters():
        if uses[parameter] == 0:
            raise ConfigError(
                f"the weight {name} of {type(model).__name__} is in no step of its chain",
                why="no stage would hold the weight",
                fix="add the module that has the weight to its step, as a tuple: (function, module)",
            )
        if uses[parameter] > 1:
            raise ConfigError(
                f"the weight {name} is used in {uses[parameter]} stages",
                why="each stage has its own weights, and copies would drift apart",
                fix="set dense.stages so that one stage has all uses, or do not share the weight",
            )


def compute(steps: Iterator[Step] | Sequence[Step], given: Any) -> Any:
    """Return the result of a chain of steps: a tensor, or a tuple of tensors."""
    for step in steps:
        given = step(*given) if isinstance(given, tuple) else step(given)
    return given


def tensors(found: Any) -> tuple[Tensor, ...]:
    """Return a step's result as a tuple of tensors; raise `ConfigError` for anything else."""
    several = found if isinstance(found, tuple) else (found,)
    for each in several:
        if not isinstance(each, Tensor):
            raise ConfigError(
                f"a step of the model's chain returned a {type(each).__name__}",
                why="only tensors can be sent from stage to stage",
                fix="return a tensor, or a tuple of tensors",
            )
    return several
