"""Finds the checkpoints in a run folder, in a folder of snapshots, or a single one."""

from satrap.checkpoint.manifest import MANIFEST
from satrap.checkpoint.series import Series
from satrap.checkpoint.storage import Storage, is_plain
from satrap.errors import CheckpointError

SNAPSHOTS, MODEL_FOLDER = "checkpoints", "model"
"""Folders of a run's snapshots and of its trained model, inside the run folder."""


def series_in(url: str) -> Series:
    """Return the snapshots in a folder of snapshots, or in `checkpoints` of a run folder."""
    return Series(f"{url.rstrip('/')}/{SNAPSHOTS}" if Storage(url).exists(SNAPSHOTS) else url)


def find(url: str) -> dict[str, str]:
    """Return name -> URL of all committed checkpoints, oldest snapshot first; raise if there are none.

    They are in a run folder or a folder of snapshots, or the URL is of a checkpoint itself.
    """
    place, url = Storage(url), url.rstrip("/")
    if place.exists(MANIFEST):
        return {url.rsplit("/", 1)[-1]: url}
    series = series_in(url)
    inside = Storage(series.url)
    found = {
        name: f"{series.url}/{name}"
        for name in sorted(inside.names(), key=lambda name: name.rsplit("-", 1)[-1])
        if name.startswith(("step-", "best-")) and is_plain(name) and inside.exists(f"{name}/{MANIFEST}")
    }
    if place.exists(f"{MODEL_FOLDER}/{MANIFEST}"):
        found[MODEL_FOLDER] = f"{url}/{MODEL_FOLDER}"
    if not found:
        raise CheckpointError(
            "there is no checkpoint here",
            where=url,
            fix="give a run folder, a folder of snapshots, or one with a manifest.json",
        )
    return found


def newest(url: str) -> str:
    """Return the URL of one checkpoint: the trained model of a run folder, else the newest snapshot."""
    found = find(url)
    snapshots = [name for name in found if not name.startswith("best-")]
    return found[MODEL_FOLDER] if MODEL_FOLDER in found else found[(snapshots or list(found))[-1]]
