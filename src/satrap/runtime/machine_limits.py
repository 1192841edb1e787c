"""Limits of this process: memory, address space and CPU time.

A container's limit (cgroup v1 or v2) counts as the machine's memory: the system kills a process beyond it. A
process beyond its CPU quota is paused.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
"""The folder in which the system describes its processes."""
_LIMIT_FILES = {"cgroup": "memory.limit_in_bytes", "cgroup2": "memory.max"}


def machine_bytes(proc: Path = PROC) -> int:
    """Return the bytes of memory of this machine, or of this process's container if it has less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_container_limits(proc)])


def address_bytes(proc: Path = PROC) -> int | None:
    """Return the bytes of address space that this process can still reserve; None: unlimited.

    `ulimit -v` and `ulimit -d` set limits. With `vm.overcommit_memory` 2 the system sets another: reserved
    memory counts as used.
    """
    remaining: list[int] = []
    with contextlib.suppress(OSError):  # a system without /proc has none of these limits
        pages = [int(number) for number in (proc / "self/statm").read_text().split()]
        used = {resource.RLIMIT_AS: pages[0], resource.RLIMIT_DATA: pages[5]}
        for kind, count in used.items():
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                remaining.append(limit - count * resource.getpagesize())
        if (proc / "sys/vm/overcommit_memory").read_text().strip() == "2":
            facts = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
            limit, used_up = (int(facts[name].split()[0]) for name in ("CommitLimit", "Committed_AS"))
            remaining.append((limit - used_up) * 1024)
    return max(0, min(remaining)) if remaining else None


def usable_cores(proc: Path = PROC) -> float:
    """Return the number of cores this process may use, by its affinity and its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(allowed), *_container_cores(proc)])


def _container_limits(proc: Path) -> Iterator[int]:
    """Yield the limits of the process's memory cgroup and of all its ancestors."""
    for kind, folder in _container_folders("memory", proc):
        with contextlib.suppress(OSError, ValueError):  # the root has no such file; "max" means unlimited
            yield int((folder / _LIMIT_FILES[kind]).read_text())


def _container_cores(proc: Path) -> Iterator[float]:
    """Yield the CPU quotas of the process's cgroup and of all its ancestors, in cores."""
    for kind, folder in _container_folders("cpu", proc):
        with contextlib.suppress(OSError, ValueError):
            names = ["cpu.max"] if kind == "cgroup2" else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if int(quota) > 0:  # -1 means unlimited
                yield int(quota) / int(period)


def _container_folders(controller: str, proc: Path) -> Iterator[tuple[str, Path]]:
    """Yield (kind, folder) of the process's cgroup of a controller, and of all its ancestors."""
    with contextlib.suppress(OSError):
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
        mounts = (proc / "self/mountinfo").read_text().splitlines()
        for mount in mounts:
            place, _, source = mount.partition(" - ")
            kind, _, options = source.split(" ", 2)
            if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
                root, folder = (_plain(text) for text in place.split()[3:5])
                for _, controllers, path in groups:
                    if ("" if kind == "cgroup2" else controller) in controllers.split(","):
                        for inner in _folders_up(Path(folder), root, path):
                            yield kind, inner


def _folders_up(mount: Path, root: str, path: str) -> Iterator[Path]:
    """Yield a cgroup's folder and its ancestors, up to the mount point of its file system."""
    inside = PurePosixPath(path)
    # a container may see its own cgroup as the root, while the path still names the ancestors
    below = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()
    folder = mount if ".." in below.parts else mount / below
    while True:
        yield folder
        if folder == mount:
            return
        folder = folder.parent


def _plain(text: str) -> str:
    """Return a path of mountinfo with its octal escapes for blanks decoded."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
