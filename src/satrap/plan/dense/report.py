"""A plan of the dense network as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from satrap.plan.dense.meshes import DensePlan, per_sample
from satrap.plan.dense.network import KINDS, Need
from satrap.plan.result import columns
from satrap.words import size

NOTES = (
    "memory: of tensors at the moment of a step when they take most, on a CPU; rows are those of the batch, "
    "not the tables; buffers are for sums, gathered weights and sent tensors; the allocator takes more",
    "sent: bytes per process and step if sums and gathers go round a ring; of rows, only what peers hand on",
    "the time of a step is not predicted: it depends on devices and network, so measure one step",
)


def report(plan: DensePlan) -> str:
    """Return the plan as lines for people."""
    inputs = plan.network.inputs
    lines = [f"dense network, batches of {inputs.size:,} samples per share"]
    if plan.given:
        lines += ["", f"mesh of the recipe: {plan.given[0].mesh}", *columns(_table(plan.given))]
        lines += [f"stages idle for {plan.given[0].bubble:.0%} of a step"] * (len(plan.given) > 1)
    if plan.tried:
        lines += ["", *columns(list(_tried(plan)))]
    lines += ["", *_outcome(plan)]
    return "\n".join([*lines, "", *(f"  {note}" for note in NOTES)])


def _table(needs: Iterable[Need]) -> list[list[str]]:
    rows = [["stage", *KINDS, "peak", "sent"]]
    for need in needs:
        cells = [size(need.memory.get(kind, 0)) for kind in KINDS]
        stages = " ".join(map(str, need.mesh.numbers(need.stage)))
        rows.append([stages, *cells, size(need.peak), size(need.traffic)])
    return rows


def _tried(plan: DensePlan) -> Iterator[list[str]]:
    yield ["mesh", "memory", "sent", "sent/sample", "idle", ""]
    for one in plan.tried:
        cells = ["", "", "", ""]
        if (need := one.need) is not None:
            sent = size(per_sample(need, plan.network))
            cells = [size(need.peak), size(need.traffic), sent, f"{need.bubble:.0%}"]
        best = plan.chosen is not None and one.need is plan.chosen
        yield [str(one.mesh), *cells, "PROPOSED" if best else one.why or "fits"]


def _outcome(plan: DensePlan) -> Iterator[str]:
    if plan.chosen is not None:
        yield f"proposed: {plan.chosen.mesh}, the one that fits and sends least for each sample"
        if plan.chosen.mesh.pipeline > 1:
            yield "no mesh without stages fits"
    elif not plan.fits and plan.memory is not None:
        yield f"DOES NOT FIT: no mesh here fits devices with {size(plan.memory)}"
        yield f"what to do: use {plan.change}"
