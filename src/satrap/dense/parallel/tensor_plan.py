"""Chooses the linear layers that a tensor group splits, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from satrap.dense.compute.support import check_no_batch_norm
from satrap.errors import ConfigError, did_you_mean

Cut = Literal["column", "row", "alone", "experts"]
"""column: split by outputs, which stay split; row: split by inputs, which arrive split; alone: split by
outputs, which are gathered. experts: split the `count` experts of a module, stacked in each of its
parameters.
The module returns the outputs of its experts in dimension 1; the outputs of all experts are gathered."""

ELEMENTWISE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Softsign,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.Identity,
    nn.Dropout,
)
"""Elementwise modules, which may stand between a column and a row."""


def tensor_plan(model: nn.Module, parts: int, stages: Mapping[str, int] | None = None) -> dict[str, Cut]:
    """Return how each linear layer of a network is split: its name -> the split; others stay whole.

    An attribute `tensor_plan` of the model defines it: `{"tower.*.up": "column", "tower.*.down": "row"}`,
    with the wildcards of `fnmatch`. Without it, modules inside the model may define their own, as in `{"":
    "experts"}`. The remaining consecutive linear layers of each `nn.Sequential` are paired, the first by
    columns and the second by rows, if only elementwise modules are between them; a pair needs one all-reduce
    forward and one backward (Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3). A linear layer
    there without a partner is split alone, if its outputs divide evenly.

    Args:
        model: the network.
        parts: number of processes in a tensor group.
        stages: module -> its pipeline stage; a pair is in one stage. Default: there are no stages.

    Raises:
        ConfigError: a name that matches no linear layer, a width that does not divide evenly, a layer that
            cannot be split, batch normalization, a pair in two stages, or no layer to split.
    """
    if parts == 1:
        return {}
    check_no_batch_norm(
        model,
        "mesh.tensor",
        "each worker would compute the statistics of its part of a layer only",
        "use mesh.data",
    )
    patterns = getattr(model, "tensor_plan", None)
    plan = _derived(model, parts, stages or {}) if patterns is None else _named(model, patterns)
    _check_stages(plan, stages or {})
    for name, cut in plan.items():
        what, width = _divided(model.get_submodule(name), cut)
        if width % parts:
            raise ConfigError(
                f"mesh.tensor {parts} does not divide the {width} {what} of {name}",
                why="each worker of a tensor group holds an equal part of the layer",
                fix=f"change the number of {what}, or mesh.tensor to a divisor of {width}",
            )
    if not plan:
        raise ConfigError(
            f"mesh.tensor is {parts}, but {type(model).__name__} has no linear layers that can be split",
            why="all workers of a tensor group would compute the same",
            fix="use mesh.data, or give the model an attribute tensor_plan",
        )
    return plan


def _named(model: nn.Module, given: Mapping[str, Cut]) -> dict[str, Cut]:
    """Return a model's own plan, with its patterns expanded."""
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    experts = [name for name, module in model.named_modules() if isinstance(_count(module), int)]
    fit, plan = set(_cuttable(model)), dict[str, Cut]()
    for pattern, cut in given.items():
        if cut not in get_args(Cut):
            raise ConfigError(
                f"tensor_plan has {cut!r} for {pattern!r}", fix=f"use {', '.join(get_args(Cut))}"
            )
        possible = experts if cut == "experts" else linears
        matches = [name for name in possible if fnmatchcase(name, pattern)]
        if not matches:
            what, kind = (
                ("not a module with a count of", "experts") if cut == "experts" else ("not a", "linear layer")
            )
            raise ConfigError(
                f"tensor_plan names {pattern!r}, which is {what} {kind} of the model",
                fix=f"{did_you_mean(pattern, possible)}{kind.removesuffix('s')}s: {', '.join(possible)}"[
                    :200
                ],
            )
        for name in matches:
            if cut != "experts" and name not in fit:
                raise ConfigError(
                    f"tensor_plan names {name!r}, whose weight is shared or computed, so it cannot be split",
                    fix="remove it from tensor_plan",
                )
            plan[name] = cut
    return plan


def _count(module: nn.Module) -> Any:
    """Return a module's number of experts; None: it is not a module of experts."""
    return getattr(module, "count", None)


def _divided(module: nn.Module, cut: Cut) -> tuple[str, int]:
    """Return the name and the number of the units that a cut splits."""
    if cut == "experts":
        return "experts", _count(module)
    assert isinstance(module, nn.Linear)
    return ("inputs", module.in_features) if cut == "row" else ("outputs", module.out_features)


def _check_stages(plan: Mapping[str, Cut], stages: Mapping[str, int]) -> None:
    """Raise `ConfigError` if a stage has columns without rows, or rows without columns."""
    for number in set(stages.values()):
        cuts = {cut for name, cut in plan.items() if stages.get(name) == number} - {"alone", "experts"}
        if len(cuts) == 1:
            [cut] = cuts
            raise ConfigError(
                f"tensor_plan splits layers of stage {number} by {cut} only",
                why="the split outputs of a column must be joined by a row in the same stage",
                fix="keep a column and its row in one stage (dense.stages), or split the layers alone",
            )


def _derived(model: nn.Module, parts: int, stages: Mapping[str, int]) -> dict[str, Cut]:
    plan = dict[str, Cut]()
    for name, module in model.named_modules():
        for inner, cut in _named(module, getattr(module, "tensor_plan", None) or {}).items():
            plan[f"{name}.{inner}".strip(".")] = cut
    fit = {name for name in _cuttable(model) if not name.startswith(tuple(f"{other}." for other in plan))}
    for stack in _stacks(model):
        open_name, clear = "", False  # the last linear layer without a partner; whether one may follow it
        for name, module in stack:
            if name in fit:
                if open_name and clear and stages.get(open_name) == stages.get(name):
                    plan |= {open_name: "column", name: "row"}
                    open_name = ""
                else:
                    open_name, clear = name, True
                    plan[name] = "alone"
            elif not isinstance(module, ELEMENTWISE):
                clear = False
    return {
        name: cut
        for name, cut in plan.items()
        if cut != "alone" or name not in fit or not model.get_submodule(name).out_features % parts  # type: ignore[operator]
    }


def _stacks(model: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield the modules of each `nn.Sequential`, in order; nested ones are flattened into the outer."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Sequential) and module not in inside:
            inside.update(module.modules())
            yield list(_flat(module, name))


def _flat(module: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        full = f"{prefix}.{name}" if prefix else name
        if isinstance(child, nn.Sequential):
            yield from _flat(child, full)
        else:
            yield full, child


def _cuttable(model: nn.Module) -> Iterator[str]:
    """Yield the names of linear layers whose parameters are not shared or computed."""
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, module in model.named_modules():
        unshared = all(uses[id(p)] == 1 for p in module.parameters(recurse=False))
        if isinstance(module, nn.Linear) and unshared and not is_parametrized(module):
            yield name
