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
)
UNKNOWN = (
    "the time of a step is not predicted: measure one in one process, and give --device-flops, the {flop} of "
    "its matrix products by its seconds"
)
KNOWN = (
    "time: of matrix products at {flops}/s, idle time, and what is sent at {bandwidth}/s, one after another; "
    "where sums overlap with computation it is shorter"
)


def report(plan: DensePlan) -> str:
    """Return the plan as lines for people."""
    inputs = plan.network.inputs
    lines = [f"dense network, batches of {inputs.size:,} samples per share"]
    if plan.given:
        lines += ["", f"mesh of the recipe: {plan.given[0].mesh}", *columns(_table(plan.given))]
        lines += [f"stages idle for {plan.given[0].bubble:.0%} of a step"] * (len(plan.given) > 1)
        if plan.speed is not None:
            longest = max(need.seconds(plan.speed) for need in plan.given)
            lines += [f"a step takes {_time(longest)}, by the speeds that are given"]
    if plan.tried:
        lines += ["", *columns(list(_tried(plan)))]
    lines += ["", *_outcome(plan)]
    return "\n".join([*lines, "", *(f"  {note}" for note in (*NOTES, _about_time(plan)))])


def _about_time(plan: DensePlan) -> str:
    if plan.speed is not None:
        return KNOWN.format(flops=_flop(plan.speed.flops), bandwidth=size(plan.speed.bandwidth))
    whole = [one.need for one in plan.tried if one.need is not None and one.mesh.pipeline == 1]
    of_all = plan.given or whole[:1]
    return UNKNOWN.format(flop=_flop(sum(need.flop * need.mesh.tensor for need in of_all)))


def _flop(count: float) -> str:
    """Return operations as `6.6 TFLOP`."""
    for unit in ("MFLOP", "GFLOP", "TFLOP"):
        count /= 1000 if unit != "MFLOP" else 1e6
        if count < 1000:
            break
    return f"{count:,.3g} {unit}"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def _table(needs: Iterable[Need]) -> list[list[str]]:
    rows = [["stage", *KINDS, "peak", "sent"]]
    for need in needs:
        cells = [size(need.memory.get(kind, 0)) for kind in KINDS]
        stages = " ".join(map(str, need.mesh.numbers(need.stage)))
        rows.append([stages, *cells, size(need.peak), size(need.traffic)])
    return rows


def _tried(plan: DensePlan) -> Iterator[list[str]]:
    timed = plan.speed is not None
    yield ["mesh", "memory", "sent", "sent/sample", "idle", *["step", "samples/s"] * timed, ""]
    for one in plan.tried:
        cells = ["", "", "", "", *["", ""] * timed]
        if (need := one.need) is not None:
            sent = size(per_sample(need, plan.network))
            cells = [size(need.peak), size(need.traffic), sent, f"{need.bubble:.0%}"]
        if need is not None and one.seconds is not None:
            samples = one.mesh.data * plan.network.inputs.size / one.seconds
            cells += [_time(one.seconds), f"{samples:,.0f}"]
        best = plan.chosen is not None and one.need is plan.chosen
        yield [str(one.mesh), *cells, "PROPOSED" if best else one.why or "fits"]


def _outcome(plan: DensePlan) -> Iterator[str]:
    if plan.chosen is not None:
        best = "sends least for each sample" if plan.speed is None else "trains most samples per second"
        yield f"proposed: {plan.chosen.mesh}, the one that fits and {best}"
        if plan.chosen.mesh.pipeline > 1 and plan.speed is None:
            yield "no mesh without stages fits"
    elif not plan.fits and plan.memory is not None:
        yield f"DOES NOT FIT: no mesh here fits devices with {size(plan.memory)}"
        yield f"what to do: use {plan.change}"
