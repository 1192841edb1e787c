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

from satrap.doctor.finding import Finding
from satrap.environment import variables
from satrap.launch.machine import CPU_INFO, processor
from satrap.machine_code import folder_of
from satrap.metrics import auc
from satrap.store.limits import PROC, address_bytes, machine_bytes, usable_cores
from satrap.threads import default_threads
from satrap.words import size

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ABILITIES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
OPEN_FILES = 1024
"""Open files below which many tables, shards or readers may fail."""
LITTLE_MEMORY = 2 << 30
"""Bytes available below which even small runs may fail."""


def machine() -> Iterator[Finding]:
    """Yield what the checks of this machine find."""
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
    found = f"{processor() or 'unknown'}; {', '.join(has) or 'no wide vectors'}; "
    found += f"PyTorch uses {torch.backends.cpu.get_cpu_capability()}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return Finding(
            "processor", "warning", f"{found}, without oneDNN", "install a PyTorch built with oneDNN"
        )
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in has:
        return Finding("processor", "warning", f"{found}: slow", "use a machine with AVX2")
    return Finding("processor", "ok", f"{found} and oneDNN")


def abilities(info: Path = CPU_INFO) -> list[str]:
    """Return which of `ABILITIES` the processor says it has."""
    try:
        flags = set(re.findall(r"^flags\s*:(.*)$", info.read_text(errors="replace"), re.MULTILINE)[:1])
    except OSError:
        return []
    return [name for name in ABILITIES if any(name in line.split() for line in flags)]


def threads(cores: float, present: int) -> Finding:
    """Say how many cores there are for how many threads, which PyTorch would start by itself."""
    used = default_threads(present)
    given = [f"{name}={variables()[name]}" for name in THREAD_VARIABLES if name in variables()]
    found = f"{cores:g} of {os.cpu_count()} cores may be used; PyTorch would use {used} threads"
    found += f" ({', '.join(given)})" if given else ""
    whole = max(1, math.floor(cores))
    if used > math.ceil(cores):
        return Finding(
            "cores", "warning", f"{found}: they wait for each other", f"set OMP_NUM_THREADS={whole}"
        )
    if cores >= 4 and used == 1:
        return Finding("cores", "warning", f"{found}: most cores idle", f"set OMP_NUM_THREADS={whole}")
    return Finding("cores", "ok", found)


def huge_pages(file: Path = HUGE_PAGES) -> Finding:
    """Say whether the store gets pages of 2 MiB, which halve the time of random access."""
    try:
        chosen = re.search(r"\[(\w+)\]", file.read_text())
    except OSError:
        return Finding("huge pages", "ok", "this system does not tell")
    setting = chosen[1] if chosen else "unknown"
    if setting == "never":
        return Finding(
            "huge pages", "warning", f"{setting}: large tables are slower", f"echo madvise > {file}"
        )
    return Finding("huge pages", "ok", setting)


def memory(proc: Path = PROC) -> Finding:
    """Say how much memory this process may have, and how much is free now."""
    limit, left, free = machine_bytes(proc), address_bytes(proc), available(proc)
    found = f"{size(limit)} for this machine or container" + (
        f", {size(free)} free" if free is not None else ""
    )
    if left is not None and left < limit:
        fix = "raise ulimit -v and ulimit -d, or set vm.overcommit_memory to 0"
        return Finding("memory", "warning", f"{found}, but only {size(left)} of address space", fix)
    if (limit if free is None else min(limit, free)) < LITTLE_MEMORY:
        return Finding("memory", "warning", f"{found}: little", "end other programs, or use a larger machine")
    return Finding("memory", "ok", found)


def available(proc: Path = PROC) -> int | None:
    """Return the bytes of memory that programs can still get; None if the system does not tell."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def open_files(limit: int) -> Finding:
    """Say how many files and connections a process may have open."""
    if limit == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if limit < OPEN_FILES:
        return Finding(
            "open files", "warning", f"at most {limit} in a process: few", f"ulimit -n {4 * OPEN_FILES}"
        )
    return Finding("open files", "ok", f"at most {limit:,} in a process")


def clock() -> Finding:
    """Say whether the clock that deadlines use runs evenly."""
    start, before = time.monotonic(), time.time()
    time.sleep(0.05)
    passed, wall = time.monotonic() - start, time.time() - before
    if not 0.04 < passed < 5 or abs(wall - passed) > 1:
        found = f"50 ms took {1000 * passed:.0f} ms by one clock and {1000 * wall:.0f} ms by the other"
        return Finding("clock", "warning", found, "check the time service of this machine, and its load")
    return Finding("clock", "ok", "runs evenly")


def gpu() -> Finding:
    """Say which GPUs PyTorch sees."""
    if not torch.cuda.is_available():
        return Finding("GPU", "ok", "none that PyTorch sees: the network computes on the CPU")
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    named = [f"cuda:{i} {one.name}, {size(one.total_memory)}" for i, one in enumerate(devices)]
    return Finding("GPU", "ok", "; ".join(named))


def kernels() -> Finding:
    """Say whether compiled kernels can be kept."""
    folder = folder_of(auc._add)
    near = folder
    while near is not None and not near.exists() and near != near.parent:
        near = near.parent
    if near is None or not os.access(near, os.W_OK):
        found = "compiled kernels cannot be kept: each process compiles them again, up to a minute"
        return Finding("kernels", "warning", found, "let NUMBA_CACHE_DIR name a folder that can be written")
    return Finding("kernels", "ok", "compiled kernels can be kept")
