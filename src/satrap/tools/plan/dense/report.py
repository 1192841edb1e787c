"""Text report of a plan of the dense network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from satrap.plan.result import columns
from satrap.runtime.formatting import size
from satrap.tools.plan.dense.meshes import DensePlan, per_sample
from satrap.tools.plan.dense.network import KINDS, Need

NOTES = (
    "memory: of tensors at the peak of a step, on a CPU; rows are the rows of the batch, not of the tables; "
    "buffers are for sums, gathered weights and sent tensors; the allocator takes more",
    "sent: bytes per process and step with ring sums and gathers; of rows, only the bytes between peers",
)
UNKNOWN = (
    "the time of a step is not predicted: measure a step in one process, and set --device-flops to the {flop}"
    " of its matrix products divided by its seconds"
)
KNOWN = (
    "time: matrix products at {flops}/s, idle time, and sending at {bandwidth}/s, one after another; "
    "if sums overlap with computation, the time is shorter"
)


def report(plan: DensePlan) -> str:
    """Return the plan as text."""
    inputs = plan.network.inputs
    lines = [f"dense network, batches of {inputs.size:,} samples per data shard"]
    if plan.given:
        lines += ["", f"mesh of the recipe: {plan.given[0].mesh}", *columns(_table(plan.given))]
        lines += [f"stages are idle for {plan.given[0].bubble:.0%} of a step"] * (len(plan.given) > 1)
        if plan.speed is not None:
            longest = max(need.seconds(plan.speed) for need in plan.given)
            lines += [f"a step takes {_time(longest)} at the given speeds"]
    if plan.tried:
        lines += ["", *columns(list(_tried(plan)))]
    lines += ["", *_outcome(plan)]
    return "\n".join([*lines, "", *(f"  {note}" for note in (*NOTES, _about_time(plan)))])


def _about_time(plan: DensePlan) -> str:
    if plan.speed is not None:
        return KNOWN.format(flops=_flop(plan.speed.flops), bandwidth=size(plan.speed.bandwidth))
    whole = [tried.need for tried in plan.tried if tried.need is not None and tried.mesh.pipeline == 1]
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
    for tried in plan.tried:
        cells = ["", "", "", "", *["", ""] * timed]
        if (need := tried.need) is not None:
            sent = size(per_sample(need, plan.network))
            cells = [size(need.peak), size(need.traffic), sent, f"{need.bubble:.0%}"]
        if need is not None and tried.seconds is not None:
            samples = tried.mesh.data * plan.network.inputs.size / tried.seconds
            cells += [_time(tried.seconds), f"{samples:,.0f}"]
        best = plan.chosen is not None and tried.need is plan.chosen
        yield [str(tried.mesh), *cells, "PROPOSED" if best else tried.why or "fits"]


def _outcome(plan: DensePlan) -> Iterator[str]:
    if plan.chosen is not None:
        best = "sends fewest bytes per sample" if plan.speed is None else "trains most samples per second"
        yield f"proposed: {plan.chosen.mesh}, which fits and {best}"
        if plan.chosen.mesh.pipeline > 1 and plan.speed is None:
            yield "no mesh without stages fits"
    elif not plan.fits and plan.memory is not None:
        yield f"DOES NOT FIT: none of these meshes fits devices with {size(plan.memory)}"
        yield f"what to do: use {plan.change}"
