"""Space and speed of the folders that a run writes to."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from satrap.config import Recipe
from satrap.doctor.finding import Finding
from satrap.launch.folder import RUNS
from satrap.words import size

PIECE, MOST_BYTES, MOST_SECONDS = 4 << 20, 64 << 20, 2.0
"""The test writes pieces until it has written, or taken, so much."""
SLOW_BYTES = 50e6
"""Bytes/s below which snapshots hold a run up."""
LITTLE_SPACE = 1 << 30
SKEW_SECONDS = 2.0
"""Difference between this machine's clock and the one that stamps files."""


def disk(recipe: Recipe | None) -> Iterator[Finding]:
    """Yield a finding for each folder: runs, snapshots, tier. URLs are not checked."""
    for what, path, need in folders(recipe):
        yield folder(what, path, need)


def folders(recipe: Recipe | None) -> Iterator[tuple[str, Path, int]]:
    """Yield what is written, where, and the bytes that it will take at least."""
    yield "runs", Path(RUNS), 0
    if recipe is not None:
        url, tier = recipe.sections.checkpoint.url, recipe.sections.embedding.tier
        if url and "://" not in url:
            yield "snapshots", Path(url), 0
        if tier is not None:
            yield "tier", Path(tier.path), tier.size


def folder(what: str, path: Path, need: int = 0) -> Finding:
    """Write and read a file below `path`, or in the nearest folder above that exists; then remove it."""
    near = path.absolute()
    while not near.is_dir() and near != near.parent:
        near = near.parent
    check = f"disk for {what}"
    try:
        free = shutil.disk_usage(near).free
        speed, skew = _write(near)
    except OSError as error:
        return Finding(check, "error", f"it cannot be written: {error.strerror}", "choose another folder")
    found = f"{size(free)} free; writes {size(speed)}/s, synced"
    if free < need:
        return Finding(
            check, "error", f"{found}, but {size(need)} are to be used", "free space, or ask for less"
        )
    if free < LITTLE_SPACE:
        return Finding(check, "warning", f"{found}: little space", "free space")
    if speed < SLOW_BYTES:
        return Finding(check, "warning", f"{found}: slow", "choose a faster disk, or save less often")
    if abs(skew) > SKEW_SECONDS:
        found += f"; its clock is {skew:+.0f} s off"
        return Finding(
            check, "warning", found, "synchronize the clocks of this machine and of the file server"
        )
    return Finding(check, "ok", found)


def _write(near: Path) -> tuple[float, float]:
    """Return (bytes/s with a sync at the end, seconds by which the file's time is ahead of this clock)."""
    data = os.urandom(PIECE)
    with tempfile.TemporaryFile(dir=near, buffering=0) as file:
        start, written = time.perf_counter(), 0
        while written < MOST_BYTES and time.perf_counter() - start < MOST_SECONDS:
            written += file.write(data)
        os.fsync(file.fileno())
        return written / (time.perf_counter() - start), os.fstat(file.fileno()).st_mtime - time.time()
