"""How much memory and address space this process may have.

A container's limit (cgroup v1 or v2) counts as the machine's memory: the system ends a process beyond it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
"""Where the system describes its processes."""
_LIMIT_FILES = {"cgroup": "memory.limit_in_bytes", "cgroup2": "memory.max"}


def machine_bytes(proc: Path = PROC) -> int:
    """Return the bytes of memory of this machine, or of this process's container if that has less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_container_limits(proc)])


def address_bytes(proc: Path = PROC) -> int | None:
    """Return the bytes of address space that this process can still reserve; None: there is no limit.

    `ulimit -v` and `ulimit -d` set limits, and so does the system where `vm.overcommit_memory` is 2: there
    reserved memory counts as used.
    """
    left: list[int] = []
    with contextlib.suppress(OSError):  # systems without /proc have none of these limits
        pages = [int(number) for number in (proc / "self/statm").read_text().split()]
        used = {resource.RLIMIT_AS: pages[0], resource.RLIMIT_DATA: pages[5]}
        for kind, count in used.items():
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                left.append(limit - count * resource.getpagesize())
        if (proc / "sys/vm/overcommit_memory").read_text().strip() == "2":
            facts = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
            limit, used_up = (int(facts[name].split()[0]) for name in ("CommitLimit", "Committed_AS"))
            left.append((limit - used_up) * 1024)
    return max(0, min(left)) if left else None


def _container_limits(proc: Path) -> Iterator[int]:
    """Yield the limits of the process's memory cgroup and of all cgroups around it."""
    with contextlib.suppress(OSError):
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
        mounts = (proc / "self/mountinfo").read_text().splitlines()
        for mount in mounts:
            place, _, source = mount.partition(" - ")
            kind, _, options = source.split(" ", 2)
            if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
                root, folder = (_plain(text) for text in place.split()[3:5])
                for _, controllers, path in groups:
                    if ("" if kind == "cgroup2" else "memory") in controllers.split(","):
                        yield from _limits_up(Path(folder), root, path, _LIMIT_FILES[kind])


def _limits_up(mount: Path, root: str, path: str, name: str) -> Iterator[int]:
    """Yield the values in files `name` from a cgroup's folder up to the mount point of its file system."""
    inside = PurePosixPath(path)
    # a container may see its own group as the root, while the path still names the groups around it
    below = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()
    folder = mount if ".." in below.parts else mount / below
    while True:
        with contextlib.suppress(OSError, ValueError):  # the root has no such file, and "max" is no limit
            yield int((folder / name).read_text())
        if folder == mount:
            return
        folder = folder.parent


def _plain(text: str) -> str:
    """Return a path of mountinfo with its octal escapes for blanks decoded."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
