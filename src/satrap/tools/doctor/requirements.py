"""Checks of a recipe on this machine: memory, cores, device, ports, data."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

from satrap.config import Recipe
from satrap.config.checks.tables import memory_of
from satrap.embedding import tables_of
from satrap.errors import ConfigError, SatrapError
from satrap.launch.build import store_of
from satrap.launch.datasets import PARTS, open_part
from satrap.launch.network import make_model
from satrap.runtime.cuda import CudaDevice, cuda_device
from satrap.runtime.formatting import size
from satrap.runtime.machine_limits import machine_bytes, usable_cores
from satrap.schema import Categorical, Numeric
from satrap.store.gpu import budget
from satrap.store.gpu.device import row_memory
from satrap.store.memory.directory import OVERHEAD
from satrap.store.row_spec import plan
from satrap.tools.doctor.finding import Finding
from satrap.tools.doctor.machine import abilities
from satrap.tools.plan.device_rows import SHARE

MUCH = 0.8
"""Share of the memory above which tables leave little for readers and messages."""


def requirements(recipe: Recipe) -> Iterator[Finding]:
    """Yield the findings about a recipe."""
    yield processes(recipe, usable_cores())
    yield from tables(recipe, machine_bytes())
    cuda = cuda_device(_number(recipe.sections.training.device))
    yield device(recipe, cuda)
    yield from rows_on_device(recipe, cuda)
    yield from ports(recipe)
    yield from data(recipe)


def processes(recipe: Recipe, cores: float) -> Finding:
    """Compare the number of processes of the recipe with the cores."""
    cluster = recipe.sections.cluster
    local = cluster.exchange == "local"
    count = 1 if local else cluster.workers + cluster.servers + cluster.loaders + cluster.embedding_workers
    if cluster.address:
        return Finding("processes", "ok", f"the recipe starts {count} on a Ray cluster, not on this machine")
    summary = f"the recipe starts {count} on {cores:g} cores"
    if count > max(1, cores):
        return Finding(
            "processes", "warning", f"{summary}: processes share cores", "use fewer workers or shards"
        )
    return Finding("processes", "ok", summary)


def tables(recipe: Recipe, limit: int) -> Iterator[Finding]:
    """Compare the tables' memory with the machine's memory of `limit` bytes."""
    tier = recipe.sections.embedding.tier
    if recipe.sections.embedding.device == "cpu":
        yield _tables_in_ram(recipe, limit)
    elif tier is not None and tier.in_memory:
        summary = f"{size(tier.size)} of {size(limit)} for rows behind the GPU"
        if tier.size > MUCH * limit:
            fix = f"set embedding.tier.size to at most {int(limit * MUCH) >> 20}MiB, or its path to a folder"
            yield Finding("tables", "error" if tier.size > limit else "warning", summary, fix)
        else:
            yield Finding("tables", "ok", summary)


def _tables_in_ram(recipe: Recipe, limit: int) -> Finding:
    cluster = recipe.sections.cluster
    per_row = row_bytes(recipe)
    whole = memory_of(recipe.sections)
    if whole is None:
        rows = limit * MUCH / max(per_row, default=1)
        summary = f"no limit is set; {size(limit)} hold about {rows:,.0f} of the widest rows"
        return Finding("tables", "ok", summary, "to be safe, set embedding.memory, for example 4GiB")
    replicas = cluster.exchange == "servers" and "replicated" in cluster.placements.values()
    needed = whole * (2 if replicas else 1)
    summary = f"{size(needed)} of {size(limit)} for all tables"
    summary += ", including replicas" if replicas else ""
    summary += f": about {whole / max(per_row, default=1):,.0f} of the widest rows"
    if needed > limit:
        fix = f"set embedding.memory to at most {int(limit * MUCH) >> 20}MiB, or use embedding.tier"
        return Finding("tables", "error", f"{summary}: more than the machine has", fix)
    if needed > MUCH * limit:
        fix = f"set embedding.memory to at most {int(limit * MUCH) >> 20}MiB"
        return Finding("tables", "warning", f"{summary}: leaves little for data and messages", fix)
    return Finding("tables", "ok", summary)


def row_bytes(recipe: Recipe, *, on_device: bool = False) -> list[int]:
    """Return the bytes of a row of each table: weights, optimizer state and index entry.

    On a device, parts of a row are padded.
    """
    schema = recipe.schema()
    dims = getattr(make_model(recipe, schema), "embedding_dims", None)
    tables = tables_of(schema, recipe.sections.embedding.optimizer, dims, store_of(recipe))
    plans = [(plan(t.optimizer, t.dim, t.dtype), t.dim) for t in tables if t.optimizer]
    if on_device:
        return [budget.row_bytes(*each) + budget.INDEX_BYTES for each in plans]
    return [each.row_bytes + OVERHEAD for each, _ in plans]


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0) if device.startswith("cuda") else 0


def device(recipe: Recipe, cuda: CudaDevice | None) -> Finding:
    """Check that the device exists and supports the recipe's precision; `cuda`: the GPU of its number."""
    name, precision = recipe.sections.training.device, recipe.sections.dense.precision
    if name.startswith("cuda"):
        if cuda is None:
            summary = f"training.device is {name}, but PyTorch does not see this device"
            return Finding("device", "error", summary, "use device: cpu, or a CUDA build of PyTorch")
        if precision == "float32" and cuda.bfloat16:
            fix = "try dense.precision: bfloat16, which is faster on this device"
            return Finding("device", "ok", f"{name}, {precision}", fix)
    elif precision != "float32" and not {"avx512_bf16", "amx_bf16"} & set(abilities()):
        summary = f"this processor has no instructions for {precision}"
        return Finding("device", "warning", summary, "use precision: float32, which is faster here")
    return Finding("device", "ok", f"{name}, {precision}")


def rows_on_device(recipe: Recipe, cuda: CudaDevice | None) -> Iterator[Finding]:
    """Check the device of the rows, or propose the network's, `cuda`, for rows that would fit there."""
    sections = recipe.sections
    name, memory = sections.embedding.device, memory_of(sections)
    if name != "cpu":
        try:
            granted = row_memory(name, memory)
        except ConfigError as error:
            yield Finding("rows", "error", error.what, error.fix)
        else:
            rows = granted / max(row_bytes(recipe, on_device=True), default=1)
            yield Finding("rows", "ok", f"{size(granted)} of {name}, about {rows:,.0f} of the widest rows")
        return
    place, here = sections.training.device, sections.cluster.exchange == "local"
    if place == "cpu" or not here or cuda is None or memory is None or sections.embedding.tier is not None:
        return
    if memory <= cuda.free * SHARE:
        summary = f"{size(memory)} for all tables would fit {place}, which has {size(cuda.free)} free"
        yield Finding("rows", "ok", summary, f"set embedding.device to {place}: rows there need no copies")


def ports(recipe: Recipe) -> Iterator[Finding]:
    """Check that the ports of OpenMetrics are free, if the recipe has any."""
    cluster = recipe.sections.cluster
    if not cluster.metrics_port:
        return
    local = cluster.exchange == "local"
    count = 1 if local else cluster.servers + cluster.workers + cluster.loaders + cluster.embedding_workers
    taken = [
        str(n)
        for n in range(cluster.metrics_port, cluster.metrics_port + count)
        if not _free(cluster.metrics_host, n)
    ]
    if taken:
        fix = "set cluster.metrics_port to 0 for free ports, or to another number"
        yield Finding("ports", "error", f"not free on {cluster.metrics_host}: {', '.join(taken)}", fix)
    else:
        yield Finding("ports", "ok", f"{count} free, from {cluster.metrics_port} on")


def _unmeasured(feature: Numeric) -> Numeric | Categorical:
    """Return a feature of the same column that needs no statistics."""
    if feature.of_ids:
        return Categorical(dim=1, column=feature.column)
    return replace(feature, transform=None)


def _free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError, OverflowError), socket.create_server((host, port), family=family):
        return True
    return False


def data(recipe: Recipe) -> Iterator[Finding]:
    """Check, for each part of the data, that its first rows can be read."""
    schema = recipe.schema()
    # The transform "standardize" would read all rows, as would counts of ids.
    schema = schema.replace({name: _unmeasured(feature) for name, feature in schema.numeric.items()})
    for part in PARTS:
        check = f"{part} rows"
        try:
            rows = open_part(recipe, schema, part)
            if rows is None:
                continue
            batch = next(iter(rows.with_options(batch_size=64, shuffle=False).batches()), None)
        except SatrapError as error:
            yield Finding(check, "error", ": ".join(filter(None, (error.what, error.where))), error.fix)
        except OSError as error:
            yield Finding(check, "error", f"the rows cannot be read: {error}", "check path and permissions")
        else:
            if batch is None:
                yield Finding(check, "error", "there are no rows", "check the files and data.split")
            else:
                yield Finding(check, "ok", "the first rows can be read")
