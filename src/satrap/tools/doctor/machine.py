"""Processor, threads, memory, limits, clock, GPU and the folder of compiled kernels."""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from satrap.launch.folder.machine import CPU_INFO, processor
from satrap.metrics import auc
from satrap.runtime.environment import variables
from satrap.runtime.formatting import size
from satrap.runtime.machine_limits import PROC, address_bytes, machine_bytes, usable_cores
from satrap.runtime.numba_cache import folder_of
from satrap.runtime.threads import default_threads
from satrap.tools.doctor.finding import Finding

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ABILITIES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
OPEN_FILES = 1024
"""Limit on open files below which many tables, shards or readers may fail."""
LITTLE_MEMORY = 2 << 30
"""Available bytes below which even small runs may fail."""


def machine() -> Iterator[Finding]:
    """Yield the findings about this machine."""
    yield _processor()
    yield threads(usable_cores(), torch.get_num_threads())
    yield huge_pages()
    yield memory()
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield clock()
    yield gpu()
    yield kernels()


def _processor() -> Finding:
    has = abilities()
    summary = f"{processor() or 'unknown'}; {', '.join(has) or 'no wide vectors'}; "
    summary += f"PyTorch uses {torch.backends.cpu.get_cpu_capability()}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return Finding(
            "processor", "warning", f"{summary}, without oneDNN", "install a PyTorch built with oneDNN"
        )
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in has:
        return Finding("processor", "warning", f"{summary}: slow", "use a machine with AVX2")
    return Finding("processor", "ok", f"{summary} and oneDNN")


def abilities(info: Path = CPU_INFO) -> list[str]:
    """Return the `ABILITIES` that the processor reports."""
    try:
        flags = set(re.findall(r"^flags\s*:(.*)$", info.read_text(errors="replace"), re.MULTILINE)[:1])
    except OSError:
        return []
    return [name for name in ABILITIES if any(name in line.split() for line in flags)]


def threads(cores: float, present: int) -> Finding:
    """Compare the usable cores with the threads that PyTorch starts by default."""
    used = default_threads(present)
    settings = [f"{name}={variables()[name]}" for name in THREAD_VARIABLES if name in variables()]
    summary = f"{cores:g} of {os.cpu_count()} cores are usable; PyTorch uses {used} threads"
    summary += f" ({', '.join(settings)})" if settings else ""
    whole = max(1, math.floor(cores))
    if used > math.ceil(cores):
        return Finding(
            "cores", "warning", f"{summary}: the threads wait for each other", f"set OMP_NUM_THREADS={whole}"
        )
    if cores >= 4 and used == 1:
        return Finding("cores", "warning", f"{summary}: most cores are idle", f"set OMP_NUM_THREADS={whole}")
    return Finding("cores", "ok", summary)


def huge_pages(file: Path = HUGE_PAGES) -> Finding:
    """Check whether the store gets pages of 2 MiB, which halve the time of random access."""
    try:
        chosen = re.search(r"\[(\w+)\]", file.read_text())
    except OSError:
        return Finding("huge pages", "ok", "unknown on this system")
    setting = chosen[1] if chosen else "unknown"
    if setting == "never":
        return Finding(
            "huge pages", "warning", f"{setting}: large tables are slower", f"echo madvise > {file}"
        )
    return Finding("huge pages", "ok", setting)


def memory(proc: Path = PROC) -> Finding:
    """Check the memory that this process may use, and the free memory."""
    limit, addressable, free = machine_bytes(proc), address_bytes(proc), available(proc)
    summary = f"{size(limit)} for this machine or container" + (
        f", {size(free)} free" if free is not None else ""
    )
    if addressable is not None and addressable < limit:
        fix = "raise ulimit -v and ulimit -d, or set vm.overcommit_memory to 0"
        return Finding("memory", "warning", f"{summary}, but only {size(addressable)} of address space", fix)
    if (limit if free is None else min(limit, free)) < LITTLE_MEMORY:
        return Finding(
            "memory", "warning", f"{summary}: little", "stop other programs, or use a larger machine"
        )
    return Finding("memory", "ok", summary)


def available(proc: Path = PROC) -> int | None:
    """Return the available memory in bytes; None if it is unknown."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def open_files(limit: int) -> Finding:
    """Check the limit on open files and connections of a process."""
    if limit == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if limit < OPEN_FILES:
        return Finding(
            "open files", "warning", f"at most {limit} per process: few", f"ulimit -n {4 * OPEN_FILES}"
        )
    return Finding("open files", "ok", f"at most {limit:,} per process")


def clock() -> Finding:
    """Check that the clock that deadlines use runs evenly."""
    start, before = time.monotonic(), time.time()
    time.sleep(0.05)
    passed, wall = time.monotonic() - start, time.time() - before
    if not 0.04 < passed < 5 or abs(wall - passed) > 1:
        summary = f"50 ms took {1000 * passed:.0f} ms by monotonic time, {1000 * wall:.0f} ms by wall time"
        return Finding("clock", "warning", summary, "check the time service and the load of this machine")
    return Finding("clock", "ok", "runs evenly")


def gpu() -> Finding:
    """List the GPUs that PyTorch sees."""
    if not torch.cuda.is_available():
        return Finding("GPU", "ok", "PyTorch sees none: the network runs on the CPU")
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    named = [f"cuda:{i} {device.name}, {size(device.total_memory)}" for i, device in enumerate(devices)]
    return Finding("GPU", "ok", "; ".join(named))


def kernels() -> Finding:
    """Check whether compiled kernels can be cached."""
    folder = folder_of(auc._add)
    near = folder
    while near is not None and not near.exists() and near != near.parent:
        near = near.parent
    if near is None or not os.access(near, os.W_OK):
        summary = "compiled kernels cannot be cached: each process compiles them again, up to a minute"
        return Finding("kernels", "warning", summary, "set NUMBA_CACHE_DIR to a writable folder")
    return Finding("kernels", "ok", "compiled kernels can be cached")
