"""Groups of processes whose memory is limited, which need root and the first version of control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def container(limit: int) -> Iterator[str]:
    """Give the file through which a process enters a group with so many bytes of memory, or skip the test."""
    with limited(limit, own_group() / f"satrap-{os.getpid()}") as group:
        yield str(group / "cgroup.procs")


def own_group() -> Path:
    """Return the folder of the group that this process is in."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = [
        path
        for _, controllers, path in (x.split(":", 2) for x in lines)
        if "memory" in controllers.split(",")
    ]
    return Path(f"/sys/fs/cgroup/memory{own[0] if own else ''}")


@contextmanager
def limited(limit: int, group: Path) -> Iterator[Path]:
    """Make a group with so many bytes of memory for a while, or skip the test."""
    try:
        group.mkdir()
    except OSError:
        pytest.skip("memory cgroups cannot be made here")
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield group
    finally:
        group.rmdir()
