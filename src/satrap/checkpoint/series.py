"""The numbered snapshots of one run, and the locations of its checkpoints."""

import re
from collections.abc import Iterator

from satrap.checkpoint.files.storage import Storage, UnreachableError, is_plain
from satrap.checkpoint.manifest import MANIFEST, ChainLink, Manifest, read_manifest
from satrap.checkpoint.snapshot import Checkpoint, loaded, open_checkpoint, verify, write_checkpoint
from satrap.errors import CheckpointError
from satrap.runtime.fault_points import hit

SNAPSHOTS, FEED_FOLDER, MODEL_FOLDER = "checkpoints", "feed", "model"
"""Folders of a run's snapshots, its feed and its trained model, inside the run folder."""
_STEP = re.compile(r"step-(\d{8,})")
_OWN = re.compile(r"(step|best)-(\d{8,})")


class Series:
    """The snapshots of a run, `<url>/step-00001000` and so on; keeps the newest `keep`.

    ```python
    series = Series("runs/x/checkpoints", keep=2)
    series.write(1000, checkpoint)          # committed when it returns, or CheckpointError
    step, checkpoint = series.read()        # the newest one
    ```

    A snapshot with `Checkpoint.deleted` is a delta: it follows the last snapshot that this object wrote or
    read. `keep` counts full snapshots, each with the deltas after it.

    The `settings["best"]` of a snapshot may name the best weights so far, such as "best-00000800" in the same
    folder. They are kept while a snapshot names them.
    """

    def __init__(self, url: str, *, keep: int = 2) -> None:
        self.url, self.keep, self._storage = url.rstrip("/"), keep, Storage(url)
        self._last: tuple[str, Manifest] | None = None

    def place(self, step: int, *, best: bool = False) -> str:
        """Return the URL of a snapshot, written or not."""
        return f"{self.url}/{name_of(step, best=best)}"

    def steps(self) -> list[int]:
        """Return the steps of the committed snapshots, ascending."""
        return list(self._descending())[::-1]

    def latest(self) -> int | None:
        """Return the step of the newest committed snapshot, or None."""
        return next(self._descending(), None)

    def _descending(self) -> Iterator[int]:
        """Yield the steps of the committed snapshots, descending; each is checked only when it is reached."""
        try:
            names = [name for name in self._storage.names() if _STEP.fullmatch(name)]
            for name in sorted(names, key=lambda name: -int(name[5:])):
                if self._committed(name):
                    yield int(name[5:])
        except OSError as error:
            raise CheckpointError(f"the snapshots cannot be listed: {error}", where=self.url) from error

    def write(self, step: int, checkpoint: Checkpoint) -> Manifest:
        """Commit a snapshot; after a full snapshot, remove the oldest ones and leftovers of failed attempts.

        If it cannot be written, or is a delta without a snapshot to follow, raises CheckpointError; the older
        snapshots stay.
        """
        link = None if checkpoint.deleted is None else self._link(step)
        before = None if link is None or self._last is None else self._last[1]
        manifest = write_checkpoint(self.place(step), checkpoint, link=link, before=before)
        if link is None:
            self.prune()
        hit("checkpoint.pruned")
        # Only now: after an error above, the caller assumes that the snapshot does not exist.
        self._last = name_of(step), manifest
        return manifest

    def unfollow(self) -> None:
        """Forget the last snapshot: `followable` is False until the next snapshot is written."""
        self._last = None

    def followable(self, step: int) -> bool:
        """Return whether a delta of this step has a snapshot to follow."""
        try:
            return (
                self._last is not None and self._last[0] != name_of(step) and self._committed(self._last[0])
            )
        except OSError:
            return False

    def _link(self, step: int) -> ChainLink:
        if self._last is None or not self.followable(step):
            raise CheckpointError(
                f"delta {name_of(step)} has no snapshot to follow",
                where=self.url,
                fix="write a full snapshot first",
            )
        previous, before = self._last
        number = 1 if before.delta is None else before.delta.number + 1
        return ChainLink(name_of(step), number, previous, before.id)

    def read(self, step: int | None = None) -> tuple[int, Checkpoint]:
        """Return (step, snapshot) of the newest snapshot, or of the given step."""
        chosen, checkpoint = self.open(step)
        return chosen, loaded(checkpoint)

    def open(self, step: int | None = None) -> tuple[int, Checkpoint]:
        """Do what `read` does without reading the network's tensors, see `open_checkpoint`."""
        chosen = self.latest() if step is None else step
        if chosen is None:
            raise CheckpointError("the folder has no snapshots", where=self.url)
        checkpoint = open_checkpoint(self.place(chosen))
        self._last = name_of(chosen), self.manifest(chosen)
        return chosen, checkpoint

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a snapshot."""
        return read_manifest(Storage(self.place(step)))

    def verify(self, step: int, *, known: set[str] | None = None) -> Manifest:
        """Verify a snapshot, the snapshots it builds on, and the best weights it names, see `verify`."""
        manifest = verify(self.place(step), known=known)
        if best := manifest.settings.get("best"):
            verify(f"{self.url}/{best}", known=known)
        return manifest

    def repair(self) -> tuple[int | None, dict[int, CheckpointError]]:
        """Remove damaged snapshots until the newest is intact; if all are damaged, remove none.

        Returns (the step of the newest intact snapshot or None, step -> error of each damaged snapshot). If
        the store does not answer, raises UnreachableError and removes none.
        """
        damaged: dict[int, CheckpointError] = {}
        verified: set[str] = set()
        for step in reversed(self.steps()):
            try:
                self.verify(step, known=verified)
            except UnreachableError:
                raise
            except CheckpointError as error:
                damaged[step] = error
                continue
            for bad in damaged:
                self._remove(name_of(bad))
            return step, damaged
        return None, damaged

    def prune(self, *, finished: bool = False) -> None:
        """Remove snapshots beyond `keep`, unnamed best weights, and folders without a manifest.

        Folders that cannot be removed stay until the next call. Damaged snapshots do not count, and are
        removed once `keep` newer ones exist; until then all best weights stay. Until the run has finished,
        the newest best weights stay, because the next snapshot will name them.
        """
        try:
            manifests, damaged = self._newest()
            needed = manifests.keys() | damaged | {str(m.settings.get("best")) for m in manifests.values()}
            newest = -1 if finished else max((int(name[5:]) for name in manifests), default=0)
            names = sorted(self._storage.names(), key=lambda name: (len(name), name), reverse=True)
            for name in names:  # from the newest: a delta is removed before the snapshot it follows
                match = _OWN.fullmatch(name)
                if not match or name in needed:
                    continue
                if match[1] == "best" and (damaged or int(match[2]) >= newest > -1):
                    continue  # a damaged snapshot may name these weights, or the next snapshot will
                self._remove(name)
            if finished and not self._storage.names():
                self._storage.remove("")
        except (OSError, CheckpointError):
            return

    def _newest(self) -> tuple[dict[str, Manifest], set[str]]:
        """Return (snapshots to keep, damaged snapshots to keep).

        Keeps the newest full snapshots, the deltas after them, and the snapshots that these need. Damaged
        snapshots do not count, and are dropped once enough newer ones exist.
        """
        every, damaged = self._manifests()
        full = [name for name, manifest in every.items() if manifest.delta is None]
        first = next(iter(every), "")
        if len(full) >= self.keep:
            first = full[-self.keep]
            damaged = {name for name in damaged if int(name[5:]) > int(first[5:])}
        needed: dict[str, Manifest] = {}
        for name in [name for name in every if int(name[5:]) >= int(first[5:])]:
            while name in every and name not in needed:
                needed[name] = every[name]
                name = link.previous if (link := every[name].delta) is not None else name
        return needed, damaged

    def _manifests(self) -> tuple[dict[str, Manifest], set[str]]:
        """Return the manifests of all snapshots, by name, and the names of damaged snapshots."""
        manifests, damaged = dict[str, Manifest](), set[str]()
        for step in self.steps():
            try:
                manifests[name_of(step)] = self.manifest(step)
            except UnreachableError:
                raise
            except CheckpointError:
                damaged.add(name_of(step))
        return manifests, damaged

    def _committed(self, name: str) -> bool:
        return self._storage.exists(f"{name}/{MANIFEST}")

    def _remove(self, name: str) -> None:
        # The manifest first: a manifest must never exist without its files.
        if self._committed(name):
            self._storage.remove(f"{name}/{MANIFEST}")
            self._storage.sync_folder(name)
        self._storage.remove(name)


def name_of(step: int, *, best: bool = False) -> str:
    """Return the folder name of a snapshot."""
    return f"{'best' if best else 'step'}-{step:08d}"


def series_in(url: str) -> Series:
    """Return the snapshots in a folder of snapshots, or in `checkpoints` of a run folder."""
    return Series(f"{url.rstrip('/')}/{SNAPSHOTS}" if Storage(url).exists(SNAPSHOTS) else url)


def find(url: str) -> dict[str, str]:
    """Return name -> URL of all committed checkpoints, oldest snapshot first; raise if none exists.

    The URL is a run folder, a folder of snapshots, or a single checkpoint. The versions of a run's feed come
    before its snapshots; its trained model comes last.
    """
    place, url = Storage(url), url.rstrip("/")
    if place.exists(MANIFEST):
        return {url.rsplit("/", 1)[-1]: url}
    urls = _committed_in(f"{url}/{FEED_FOLDER}", f"{FEED_FOLDER}/") if place.exists(FEED_FOLDER) else {}
    urls |= _committed_in(series_in(url).url)
    if place.exists(f"{MODEL_FOLDER}/{MANIFEST}"):
        urls[MODEL_FOLDER] = f"{url}/{MODEL_FOLDER}"
    if not urls:
        raise CheckpointError(
            "the folder has no checkpoint",
            where=url,
            fix="give a run folder, a folder of snapshots, or a folder with a manifest.json",
        )
    return urls


def _committed_in(url: str, prefix: str = "") -> dict[str, str]:
    """Return name -> URL of the committed snapshots in a folder, oldest first."""
    inside = Storage(url)
    return {
        prefix + name: f"{url}/{name}"
        for name in sorted(inside.names(), key=lambda name: name.rsplit("-", 1)[-1])
        if name.startswith(("step-", "best-")) and is_plain(name) and inside.exists(f"{name}/{MANIFEST}")
    }


def newest(url: str) -> str:
    """Return the URL of one checkpoint: the trained model of a run folder, else the newest snapshot."""
    urls = find(url)
    snapshots = [name for name in urls if not name.startswith("best-")]
    return urls[MODEL_FOLDER] if MODEL_FOLDER in urls else urls[(snapshots or list(urls))[-1]]
