"""Choice of the mesh that spreads a network over some devices, with reasons against the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from satrap import compatibility
from satrap.errors import ConfigError
from satrap.runtime.formatting import size
from satrap.settings.mesh import Mesh, Sharded
from satrap.tools.plan.dense.copies import need_of_copy
from satrap.tools.plan.dense.network import Need, NetworkSpec, Speed
from satrap.tools.plan.dense.pipeline import needs_of_stages

MOST = 8
"""Largest tensor size and number of stages to try: one machine rarely has more devices."""
MORE = 256
"""Most devices to try if the given devices are too few."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A mesh, and the needs of its process with the highest peak memory.

    Args:
        mesh: the mesh.
        need: None: the network does not support the mesh.
        why: reason against the mesh; empty: it fits.
        seconds: time of a step at the slowest process; None: the speed of devices is unknown.
    """

    mesh: Mesh
    need: Need | None
    why: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DensePlan:
    """Result of `plan_dense`.

    Args:
        network: the network.
        memory: bytes of each device; None: not given.
        speed: speed of devices; None: not given.
        given: needs for the recipe's mesh: of each stage, or of the first process of a mesh without stages.
        tried: meshes for the given number of devices, if any.
        chosen: the proposed one of them.
        change: as text, a change that would make the network fit, if nothing fits.
    """

    network: NetworkSpec
    memory: int | None
    given: tuple[Need, ...] = ()
    tried: tuple[Tried, ...] = ()
    chosen: Need | None = None
    change: str = ""
    speed: Speed | None = None

    @property
    def fits(self) -> bool:
        """Whether a mesh fits, or no devices were given."""
        if self.tried:
            return self.chosen is not None
        return self.memory is None or all(need.peak <= self.memory for need in self.given)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data: bytes and counts, and seconds of a step if `speed` is set."""
        return {
            "batch_size": self.network.inputs.size,
            "device_memory": self.memory,
            "fits": self.fits,
            "mesh": [need.to_dict() | self._seconds(need.seconds) for need in self.given],
            "proposed": None if self.chosen is None else keys(self.chosen.mesh),
            "tried": [
                {"mesh": keys(tried.mesh), "why_not": tried.why}
                | (
                    {}
                    if tried.need is None
                    else tried.need.to_dict() | {"bytes_per_sample": per_sample(tried.need, self.network)}
                )
                | ({} if tried.seconds is None else {"seconds": tried.seconds})
                for tried in self.tried
            ],
            "change": self.change,
        }

    def _seconds(self, of: Callable[[Speed], float]) -> dict[str, float]:
        return {} if self.speed is None else {"seconds": of(self.speed)}


def plan_dense(
    network: NetworkSpec,
    *,
    mesh: Mesh | None = None,
    devices: int | None = None,
    memory: int | None = None,
    speed: Speed | None = None,
) -> DensePlan:
    """Return the needs of a mesh, and propose a mesh for some devices.

    With a speed, the proposal is the fitting mesh that trains most samples per second, with the network's
    batch size per data shard. Without a speed, it is the fitting mesh that sends fewest bytes per sample,
    among meshes without stages. Meshes with stages are proposed only if no other mesh fits: they send fewest
    bytes, but idle at the start and end of each step.

    Args:
        network: the network to train.
        mesh: the recipe's mesh.
        devices: number of devices; default: no mesh is proposed.
        memory: bytes of each device; required with `devices`.
        speed: speed of each device; default: no time is predicted, and pipelines with several stages per
            process, which send more and idle less, are not tried.

    Raises:
        ConfigError: the network does not support `mesh`.
    """
    given = () if mesh is None else tuple(needs(network, mesh))
    if devices is None or memory is None:
        plan = DensePlan(network, memory, given, speed=speed)
        return plan if plan.fits or mesh is None else replace(plan, change=_change(network, mesh, plan))
    candidates = meshes(devices, network.microbatches, interleaved=speed is not None)
    tried = tuple(_try(network, candidate, memory, speed) for candidate in candidates)
    fitting = [result for result in tried if result.need is not None and not result.why]
    plan = DensePlan(network, memory, given, tried, speed=speed)
    if fitting:
        return replace(plan, chosen=min(fitting, key=lambda result: _cost(result, network)).need)
    possible = [result.need for result in tried if result.need is not None]
    least = min(possible, key=lambda need: need.peak)
    return replace(plan, change=_change(network, least.mesh, replace(plan, given=(least,))))


def needs(network: NetworkSpec, mesh: Mesh) -> list[Need]:
    """Return the needs of each stage of a mesh, or of the first process of a mesh without stages.

    Raises:
        ConfigError: the network does not support the mesh, or offloaded weights conflict with other settings.
    """
    if network.weights_off:
        settings = {
            "dense.offload.weights": True,
            "training.device": "cpu" if network.offload == "disk" else "cuda",
            "dense.precision": network.precision,
            "dense.checkpoint_activations": network.checkpoint_activations,
        }
        compatibility.check(settings | mesh.settings)
    return needs_of_stages(network, mesh) if mesh.pipeline > 1 else [need_of_copy(network, mesh)]


def meshes(devices: int, microbatches: int = 1, *, interleaved: bool = False) -> Iterator[Mesh]:
    """Yield the meshes to try for a number of devices, the simplest first.

    Args:
        devices: number of devices.
        microbatches: microbatches of the network; with one, "optimizer" equals "gradients".
        interleaved: whether to include pipelines with two stages per process.
    """
    for tensor in _divisors(devices):
        data = devices // tensor
        kinds: list[tuple[Sharded, int | None]] = [(False, None)]
        if data > 1:
            kinds += [("optimizer", None)] * (microbatches > 1)
            kinds += [
                ("gradients", None),
                *((True, s) for s in _divisors(data) if 1 < s < data),
                (True, None),
            ]
        for sharded, shard_size in kinds:
            yield Mesh(data, tensor, sharded, shard_size)
    for pipeline in _divisors(devices):
        for tensor in _divisors(devices // pipeline) if pipeline > 1 else []:
            data = devices // pipeline // tensor
            for sharded in (False, True) if data > 1 else (False,):
                plain = Mesh(data, tensor, sharded, pipeline=pipeline)
                yield plain
                if interleaved:
                    yield replace(plain, schedule="interleaved_1f1b")


def _cost(tried: Tried, network: NetworkSpec) -> tuple[float, float]:
    """Return the cost to minimize: seconds per sample, or the order described in `plan_dense`."""
    assert tried.need is not None
    if tried.seconds is not None:
        return tried.seconds / tried.mesh.data, 0.0
    return float(tried.mesh.pipeline > 1), per_sample(tried.need, network)


def per_sample(need: Need, network: NetworkSpec) -> float:
    """Return the bytes that all processes send per sample of a step."""
    return need.traffic * need.mesh.size / (need.mesh.data * network.inputs.size)


def keys(mesh: Mesh) -> dict[str, Any]:
    """Return a mesh as the keys of a recipe's `dense`."""
    sizes = {"data": mesh.data, "tensor": mesh.tensor, "pipeline": mesh.pipeline}
    settings: dict[str, Any] = {"mesh": {name: n for name, n in sizes.items() if n > 1 or name == "data"}}
    if mesh.sharded:
        settings["sharded"] = mesh.sharded
    if mesh.shard_size is not None:
        settings["shard_size"] = mesh.shard_size
    if mesh.pipeline > 1:
        settings["microbatches"] = mesh.parts
    if mesh.per_rank > 1:
        settings["schedule"] = mesh.schedule
    return settings


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, MOST) + 1) if number % n == 0]


def _try(network: NetworkSpec, mesh: Mesh, memory: int, speed: Speed | None = None) -> Tried:
    try:
        stage_needs = needs(replace(network, microbatches=1) if mesh.pipeline > 1 else network, mesh)
    except ConfigError as error:
        return Tried(mesh, None, error.what)
    worst = max(stage_needs, key=lambda need: need.peak)
    missing = worst.peak - memory
    seconds = None if speed is None else max(need.seconds(speed) for need in stage_needs)
    return Tried(mesh, worst, f"needs {size(missing)} more" if missing > 0 else "", seconds)


def _change(network: NetworkSpec, mesh: Mesh, plan: DensePlan) -> str:
    """Return the first change with which a mesh fits, as text."""
    assert plan.memory is not None
    larger = f"devices with {size(max(need.peak for need in plan.given))}"
    fixed = max(need.memory["parameters"] + need.memory.get("optimizer", 0) for need in plan.given)
    for change in _changes(network, mesh):
        if (change.mesh != mesh or fixed < plan.memory) and _fits(change, plan.memory):
            return f"{change.words}, or {larger}"
    return larger


@dataclass(frozen=True, slots=True)
class _Change:
    words: str
    network: NetworkSpec
    mesh: Mesh


def _fits(change: _Change, memory: int) -> bool:
    try:
        return max(need.peak for need in needs(change.network, change.mesh)) <= memory
    except ConfigError:
        return False


def _changes(network: NetworkSpec, mesh: Mesh) -> Iterator[_Change]:
    """Yield changes, the cheapest first."""
    once = replace(network, checkpoint_activations=True)
    if mesh.pipeline > 1:  # it has its own microbatches, and more replicas of a stage do not need less
        yield _Change("dense.checkpoint_activations: true", once, mesh)
        return
    counts = [n for n in (2, 4, 8, 16, 32) if network.microbatches < n <= network.inputs.size]
    for count in counts:
        yield _Change(f"dense.microbatches: {count}", replace(network, microbatches=count), mesh)
    yield _Change("dense.checkpoint_activations: true", once, mesh)
    for count in counts:
        words = f"dense.checkpoint_activations: true and dense.microbatches: {count}"
        yield _Change(words, replace(once, microbatches=count), mesh)
    data = 2 * mesh.data
    while data * mesh.peers <= MORE:
        spread = replace(mesh, data=data, sharded=True, shard_size=None)
        yield _Change(f"{spread.size} devices ({spread})", network, spread)
        data *= 2
