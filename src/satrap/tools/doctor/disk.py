"""Space and speed of the folders that a run writes to."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from satrap.config import Recipe
from satrap.launch.folder.run_folder import RUNS
from satrap.runtime.formatting import size
from satrap.tools.doctor.finding import Finding

PIECE, MOST_BYTES, MOST_SECONDS = 4 << 20, 64 << 20, 2.0
"""The test writes pieces up to this total size or time."""
SLOW_BYTES = 50e6
"""Write speed in bytes/s below which snapshots slow down a run."""
LITTLE_SPACE = 1 << 30
SKEW_SECONDS = 2.0
"""Largest tolerated difference, in seconds, between this machine's clock and the file server's clock."""


def disk(recipe: Recipe | None) -> Iterator[Finding]:
    """Yield a finding for each folder: runs, snapshots, tier. URLs are not checked."""
    for what, path, need in folders(recipe):
        yield folder(what, path, need)


def folders(recipe: Recipe | None) -> Iterator[tuple[str, Path, int]]:
    """Yield (name, folder, minimum bytes) for each kind of output."""
    yield "runs", Path(RUNS), 0
    if recipe is not None:
        url, tier = recipe.sections.checkpoint.url, recipe.sections.embedding.tier
        if url and "://" not in url:
            yield "snapshots", Path(url), 0
        if tier is not None and not tier.in_memory:
            yield "tier", Path(tier.path), tier.size


def folder(what: str, path: Path, need: int = 0) -> Finding:
    """Test a temporary file below `path`, or in the nearest existing parent folder."""
    near = path.absolute()
    while not near.is_dir() and near != near.parent:
        near = near.parent
    check = f"disk for {what}"
    try:
        free = shutil.disk_usage(near).free
        speed, skew = _write(near)
    except OSError as error:
        return Finding(
            check, "error", f"the folder is not writable: {error.strerror}", "choose another folder"
        )
    summary = f"{size(free)} free; writes {size(speed)}/s, synced"
    if free < need:
        return Finding(
            check,
            "error",
            f"{summary}, but {size(need)} are needed",
            "free space, or lower the size in the recipe",
        )
    if free < LITTLE_SPACE:
        return Finding(check, "warning", f"{summary}: little space", "free space")
    if speed < SLOW_BYTES:
        return Finding(check, "warning", f"{summary}: slow", "choose a faster disk, or save less often")
    if abs(skew) > SKEW_SECONDS:
        summary += f"; the file server's clock is {skew:+.0f} s off"
        return Finding(
            check, "warning", summary, "synchronize the clocks of this machine and the file server"
        )
    return Finding(check, "ok", summary)


def _write(near: Path) -> tuple[float, float]:
    """Return (bytes/s with a sync at the end, seconds by which the file's time is ahead of this clock)."""
    data = os.urandom(PIECE)
    with tempfile.TemporaryFile(dir=near, buffering=0) as file:
        start, written = time.perf_counter(), 0
        while written < MOST_BYTES and time.perf_counter() - start < MOST_SECONDS:
            written += file.write(data)
        os.fsync(file.fileno())
        return written / (time.perf_counter() - start), os.fstat(file.fileno()).st_mtime - time.time()
