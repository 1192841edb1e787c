"""The numbered snapshots of one run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from satrap.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from satrap.checkpoint.snapshot import Checkpoint, read_checkpoint, verify, write_checkpoint
from satrap.checkpoint.storage import Storage
from satrap.errors import CheckpointError
from satrap.faults import hit

_STEP = re.compile(r"step-(\d{8,})")
_OWN = re.compile(r"(step|best)-(\d{8,})")


class Series:
    """The snapshots of a run, `<url>/step-00001000` and so on; the newest `keep` of them stay.

    ```python
    series = Series("runs/x/checkpoints", keep=2)
    series.write(1000, checkpoint)          # committed when it returns, or CheckpointError
    step, checkpoint = series.read()        # the newest one
    ```

    A snapshot may name another checkpoint, `settings["best"]` (such as "best-00000800", the best weights so
    far, written by `write` with `best=True`), which is kept as long as a snapshot names it.

    Args:
        url: folder or fsspec URL.
        keep: how many snapshots stay, at least 1.
        options: passed to the file system.
    """

    def __init__(self, url: str, *, keep: int = 2, **options: Any) -> None:
        self.url, self.keep, self._options = url.rstrip("/"), keep, options
        self._storage = Storage(url, **options)

    def place(self, step: int, *, best: bool = False) -> str:
        """Return the URL of a snapshot, written or not."""
        return f"{self.url}/{name_of(step, best=best)}"

    def steps(self) -> list[int]:
        """Return the steps of the committed snapshots, ascending.

        Raises:
            CheckpointError: the folder cannot be listed.
        """
        try:
            names = self._storage.names()
            found = [int(m[1]) for name in names if (m := _STEP.fullmatch(name)) and self._committed(name)]
        except OSError as error:
            raise CheckpointError(f"the snapshots cannot be listed: {error}", where=self.url) from error
        return sorted(found)

    def latest(self) -> int | None:
        """Return the step of the newest committed snapshot, or None."""
        return max(self.steps(), default=None)

    def write(self, step: int, checkpoint: Checkpoint, *, best: bool = False) -> Manifest:
        """Commit a snapshot, then remove the oldest ones and what dead attempts left behind.

        Raises:
            CheckpointError: it cannot be written; the older ones are untouched.
        """
        manifest = write_checkpoint(self.place(step, best=best), checkpoint, **self._options)
        if not best:
            self.prune()
        hit("checkpoint.pruned")
        return manifest

    def read(self, step: int | None = None) -> tuple[int, Checkpoint]:
        """Return (step, snapshot) of the newest snapshot, or of a given one.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        chosen = self.latest() if step is None else step
        if chosen is None:
            raise CheckpointError("there are no snapshots", where=self.url)
        return chosen, read_checkpoint(self.place(chosen), **self._options)

    def read_best(self, name: str) -> Checkpoint:
        """Return the checkpoint that a snapshot names in `settings["best"]`."""
        return read_checkpoint(f"{self.url}/{name}", **self._options)

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a snapshot.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        return read_manifest(Storage(self.place(step), **self._options))

    def verify(self, step: int) -> Manifest:
        """Read every byte of a snapshot and of the best weights it names.

        Raises:
            CheckpointError: the first damage found.
        """
        manifest = verify(self.place(step), **self._options)
        if best := manifest.settings.get("best"):
            verify(f"{self.url}/{best}", **self._options)
        return manifest

    def repair(self) -> tuple[int | None, dict[int, CheckpointError]]:
        """Remove damaged snapshots until the newest is good.

        Returns:
            (step of the newest good snapshot or None, step -> damage of those that were removed). Nothing is
            removed if no good one is left.
        """
        found: dict[int, CheckpointError] = {}
        for step in reversed(self.steps()):
            try:
                self.verify(step)
            except CheckpointError as error:
                found[step] = error
                continue
            for bad in found:
                self._remove(name_of(bad))
            return step, found
        return None, found

    def prune(self, *, finished: bool = False) -> None:
        """Remove snapshots beyond `keep`, best weights nobody names, and folders without a manifest.

        What cannot be removed now is removed the next time.

        Args:
            finished: whether the run has ended; before, the newest best weights stay, which the next snapshot
                will name.
        """
        try:
            steps = self.steps()[-self.keep :]
            kept = {name_of(step) for step in steps} | self._named_by(steps)
            newest = -1 if finished else max(steps, default=0)
            for name in self._storage.names():
                own = _OWN.fullmatch(name)
                if own and name not in kept and not (own[1] == "best" and int(own[2]) >= newest > -1):
                    self._remove(name)
            if finished and not self._storage.names():
                self._storage.remove("")
        except (OSError, CheckpointError):
            return

    def _named_by(self, steps: Iterable[int]) -> set[str]:
        return {str(best) for step in steps if (best := self.manifest(step).settings.get("best"))}

    def _committed(self, name: str) -> bool:
        return self._storage.exists(f"{name}/{MANIFEST}")

    def _remove(self, name: str) -> None:
        # The manifest goes first: at no time is there a manifest without its files.
        if self._committed(name):
            self._storage.remove(f"{name}/{MANIFEST}")
            self._storage.sync_folder(name)
        self._storage.remove(name)


def name_of(step: int, *, best: bool = False) -> str:
    """Return the folder name of a snapshot."""
    return f"{'best' if best else 'step'}-{step:08d}"
