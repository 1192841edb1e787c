"""A group of processes whose memory is limited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def container(limit: int) -> Iterator[str]:
    """Give the file through which a process enters a group with so many bytes of memory, or skip the test."""
    lines = [
        line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    ]
    own = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    group = Path(f"/sys/fs/cgroup/memory{own[0] if own else ''}/satrap-offload-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("memory cgroups cannot be made here")
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield str(group / "cgroup.procs")
    finally:
        group.rmdir()
