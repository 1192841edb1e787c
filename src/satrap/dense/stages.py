"""Cuts a network into stages, which compute one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion
from torch.utils.flop_counter import FlopCounterMode

from satrap.dense.mesh import Mesh
from satrap.dense.tensor_plan import Cut, tensor_plan
from satrap.errors import ConfigError, did_you_mean

PYTORCH = "2.13"
"""The oldest version whose pipelining is tested here."""

Step = Callable[..., Any]
"""Part of a network; it gets what the one before returned, a tuple of tensors as several arguments."""


@dataclass(frozen=True, slots=True)
class Link:
    """Steps that stay together: one with weights, and those without that follow it.

    Args:
        name: of the first module with weights, in the network.
        modules: which these steps use.
        steps: the steps.
    """

    name: str
    modules: tuple[nn.Module, ...]
    steps: tuple[Step, ...]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its weights, each once."""
        return list(dict.fromkeys(p for module in self.modules for p in module.parameters()))


def links_of(model: nn.Module, mesh: Mesh) -> list[Link]:
    """Return the links of a network that can be cut into the stages of a mesh.

    A method `chain` of the model returns its steps, in order: the first gets the `EmbeddedBatch`, each other
    what the one before returned, and the last returns the logits. A step is a module of the model, a function
    without weights, or a tuple of a function and the modules that it uses. An `nn.Sequential` is its own
    chain. Boundaries between stages must be tensors whose first dimension are the samples.

    Raises:
        ConfigError: an old PyTorch, no chain or too short a one, or batch normalisation.
    """
    if TorchVersion(torch.__version__) < PYTORCH:
        raise ConfigError(
            f"mesh.pipeline needs PyTorch {PYTORCH}, and this is {torch.__version__}",
            why="older versions refuse some tensors between stages, and none was tested",
            fix=f"pip install 'torch>={PYTORCH}', or use mesh.data",
        )
    _refuse_batch_norm(model)
    links = _links(model)
    if len(links) < mesh.stage_count:
        each = f" with {mesh.per_rank} stages each" * (mesh.per_rank > 1)
        raise ConfigError(
            f"mesh.pipeline is {mesh.pipeline}{each}, but {type(model).__name__} has {len(links)} layers to"
            " cut at",
            why="each stage needs one",
            fix=f"use {len(links)} stages or fewer, or a deeper network",
        )
    return links


@dataclass(frozen=True, slots=True)
class Cutting:
    """A network in stages.

    Args:
        stages: the links of each.
        handed: what each makes of the batch that was tried.
    """

    stages: list[list[Link]]
    handed: list[tuple[Tensor, ...]]


def stages_of(model: nn.Module, mesh: Mesh, batch: Any) -> Cutting:
    """Cut a network into the stages of a mesh, and try them out.

    Args:
        model: the network, see `links_of`.
        mesh: `stages` names the first module of each stage but the first. Without names, the stage with most
            operations has as few as possible: those of matrix products in the forward pass of the batch,
            which are counted, so all processes find the same; of a network without any, its parameters.
        batch: what the first step gets; some samples are enough.

    Raises:
        ConfigError: see `links_of`; or weights outside the chain or in two stages, a name that is not in it,
            or something other than tensors between stages.
    """
    links, found = links_of(model, mesh), batch
    made, costs = list[Any](), list[int]()
    for link in links:
        with FlopCounterMode(display=False) as counter:
            found = compute(link.steps, found)
        made.append(found)
        costs.append(counter.get_total_flops())
    if not any(costs):
        costs = [sum(p.numel() for p in link.parameters) for link in links]
    starts = [0, *_named(links, mesh.stages)] if mesh.stages else _balanced(costs, mesh.stage_count)
    ends = [*starts[1:], len(links)]
    stages = [links[start:end] for start, end in zip(starts, ends, strict=True)]
    _check_weights(model, stages)
    return Cutting(stages, [tensors(made[end - 1]) for end in ends])


def stage_cuts(model: nn.Module, mesh: Mesh, stages: Sequence[Sequence[Link]]) -> dict[str, Cut]:
    """Return how the layers of all stages are cut: the `tensor_plan`, with each pair in one stage.

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


def described(stages: Sequence[Sequence[Link]]) -> str:
    """Return the stages in words: the names of their modules, and how many parameters each has."""
    counts = [sum(p.numel() for link in stage for p in link.parameters) for stage in stages]
    names = [" ".join(link.name for link in stage) for stage in stages]
    return " | ".join(f"{name} ({count:,})" for name, count in zip(names, counts, strict=True))


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"mesh.pipeline does not go with batch normalisation: {name}",
                why="each part of a batch would be normalised by itself",
                fix="use mesh.data, or the model without batch_norm",
            )


def _links(model: nn.Module) -> list[Link]:
    """Return the chain of a model, in pieces that begin with weights."""
    chain = model.chain if hasattr(model, "chain") else model.children
    if not callable(chain) or not (hasattr(model, "chain") or isinstance(model, nn.Sequential)):
        raise ConfigError(
            f"{type(model).__name__} cannot be cut into stages: it has no method chain",
            why="nothing says in which order its layers compute",
            fix="use dnn, dcnv2, dlrm, wukong or rankmixer, give the model a method chain, or use mesh.data",
        )
    names = {module: name for name, module in model.named_modules()}
    links, name = list[Link](), ""
    steps, used = list[Step](), list[nn.Module]()
    for step, modules in map(_taken_apart, chain()):
        if unknown := [module for module in modules if module not in names]:
            raise ConfigError(
                f"chain of {type(model).__name__} has a {type(unknown[0]).__name__} that is not in the model",
                fix="make it an attribute of the model",
            )
        weights = [module for module in modules if any(True for _ in module.parameters())]
        if weights and name:
            links.append(Link(name, tuple(used), tuple(steps)))
            steps, used = [], []
        if weights:
            name = names[weights[0]]
        steps.append(step)
        used += modules
    return [*links, Link(name, tuple(used), tuple(steps))]


def _taken_apart(step: Any) -> tuple[Step, tuple[nn.Module, ...]]:
    """Return the function of a step, and the modules that it uses."""
    if isinstance(step, nn.Module):
        return step, (step,)
    function, *modules = step if isinstance(step, tuple) else (step,)
    if not callable(function) or not all(isinstance(module, nn.Module) for module in modules):
        raise ConfigError(
            f"chain has {step!r}"[:200],
            why="that is no module, no function, and no tuple of a function and modules",
            fix="correct the model's method chain",
        )
    return function, tuple(modules)


def _named(links: Sequence[Link], given: Sequence[str]) -> list[int]:
    """Return the numbers of the links that the names stand for."""
    names = [link.name for link in links]
    starts = list[int]()
    for name in given:
        if name not in names:
            raise ConfigError(
                f"stages names {name!r}, with which none can begin",
                fix=f"{did_you_mean(name, names)}modules: {', '.join(names)}"[:200],
            )
        starts.append(names.index(name))
    if starts != sorted(set(starts) - {0}):
        raise ConfigError(
            f"stages cannot begin with {', '.join(given)}",
            why="names must come in the order of the network, each once, and without its first module",
            fix=f"choose among {', '.join(names[1:])}"[:200],
        )
    return starts


def _balanced(costs: Sequence[int], parts: int) -> list[int]:
    """Return where stages begin so that the most costly one costs least."""

    @cache
    def best(first: int, left: int) -> tuple[int, tuple[int, ...]]:
        if left == 1:
            return sum(costs[first:]), (first,)
        found = list[tuple[int, tuple[int, ...]]]()
        for end in range(first + 1, len(costs) - left + 2):
            rest, starts = best(end, left - 1)
            found.append((max(sum(costs[first:end]), rest), (first, *starts)))
        return min(found)

    return list(best(0, parts)[1])


def _check_weights(model: nn.Module, stages: Sequence[Sequence[Link]]) -> None:
    """Raise `ConfigError` unless each parameter is in exactly one stage."""
    uses = Counter(p for stage in stages for p in {p for link in stage for p in link.parameters})
    for name, parameter in model.named_parameters():
        if uses[parameter] == 0:
            raise ConfigError(
                f"the weight {name} of {type(model).__name__} is in no step of its chain",
                why="so no stage would have it",
                fix="add the module that has it to its step, as a tuple: (function, module)",
            )
        if uses[parameter] > 1:
            raise ConfigError(
                f"the weight {name} is used in {uses[parameter]} stages",
                why="each stage has weights of its own, and copies would drift apart",
                fix="name stages (dense.stages) so that one has all its uses, or do not share the weight",
            )


def compute(steps: Iterator[Step] | Sequence[Step], given: Any) -> Any:
    """Return what steps make of an input: a tensor, or a tuple of tensors."""
    for step in steps:
        given = step(*given) if isinstance(given, tuple) else step(given)
    return given


def tensors(found: Any) -> tuple[Tensor, ...]:
    """Return what a step returned as a tuple; anything but tensors is a `ConfigError`."""
    several = found if isinstance(found, tuple) else (found,)
    for one in several:
        if not isinstance(one, Tensor):
            raise ConfigError(
                f"a step of the model's chain returned a {type(one).__name__}",
                why="only tensors pass from stage to stage",
                fix="return a tensor, or a tuple of tensors",
            )
    return several
