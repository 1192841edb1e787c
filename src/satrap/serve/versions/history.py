"""Old rows of earlier versions where later versions differ: a server can roll back at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
from torch import nn

from satrap.serve.versions.overlay import Overlay
from satrap.store import RowChunk, Shard
from satrap.store.arrays import Found, Ids

Rows = npt.NDArray[np.float32]


@dataclass(slots=True)
class Earlier:
    """A version that was served: its network, and its rows that the next version changes.

    Args:
        step, version, published: see `Update`.
        network: the network with the weights of this version.
        rows: (table, ids, rows, whether each id had a row) of the changes so far.
        bytes: memory of the network and the rows.
    """

    step: int
    version: str
    published: float
    network: nn.Module
    rows: list[tuple[str, Ids, Rows, Found]] = field(default_factory=list)
    bytes: int = 0


class VersionHistory:
    """The versions before the served one, newest last, each with the old rows of the next one's changes.

    Only the scoring thread may change it. Another thread may read it while no rows are noted.

    Args:
        store: holds the rows. A store with an SSD tier keeps no history, because old rows would have to be
            read from disk.
        keep: maximum number of versions.
        most_bytes: maximum memory; beyond it, the oldest versions are dropped.
    """

    def __init__(self, store: Shard, *, keep: int, most_bytes: int) -> None:
        self._store, self._most_bytes = store, most_bytes
        self._keep = 0 if store.ahead.useful else keep
        self._versions: list[Earlier] = []
        self._noting = False

    @property
    def steps(self) -> list[int]:
        """The steps of the versions, ascending."""
        return [version.step for version in self._versions]

    @property
    def bytes(self) -> int:
        """Memory of all versions."""
        return sum(version.bytes for version in self._versions)

    def add(self, step: int, version: str, published: float, network: nn.Module) -> nn.Module | None:
        """Add the version that was served until now; return a network that is no longer needed, if any."""
        if not self._keep:
            return network
        size = sum(weights.numel() * weights.element_size() for weights in network.parameters())
        self._versions.append(Earlier(step, version, published, network, bytes=size))
        self._noting = True
        return self._forget()

    def note(self, table: str, ids: Ids) -> None:
        """Save the current rows of ids uint64[n], which are about to change."""
        if not self._noting:
            return
        rows, found = self._store.peek(table, ids)
        newest = self._versions[-1]
        newest.rows.append((table, ids, rows, found))
        newest.bytes += ids.nbytes + rows.nbytes + found.nbytes
        self._forget()

    def _forget(self) -> nn.Module | None:
        """Drop the oldest versions beyond the limits; return the network of the last one dropped."""
        network = None
        while self._versions and (len(self._versions) > self._keep or self.bytes > self._most_bytes):
            network = self._versions.pop(0).network
        self._noting = bool(self._versions)
        return network

    def back_to(self, step: int) -> tuple[Earlier, Overlay]:
        """Return a version, and the overlay that restores its rows."""
        overlay = Overlay(self._store)
        for version in reversed(self._versions):
            for table, ids, rows, found in _by_table(version):
                overlay.load(
                    RowChunk(table, ids[found], rows[found], np.empty((int(found.sum()), 0), np.float32))
                )
                overlay.remove(table, ids[~found])
            if version.step == step:
                overlay.seal()
                return version, overlay
        overlay.close()
        raise KeyError(step)

    def cut(self, step: int) -> None:
        """Drop a version that is served again, and all versions after it."""
        self._versions = [version for version in self._versions if version.step < step]
        self._noting = False


def _by_table(version: Earlier) -> Iterator[tuple[str, Ids, Rows, Found]]:
    """Yield the rows of a version; joins adjacent entries of a table."""
    for table, pieces in groupby(version.rows, key=lambda piece: piece[0]):
        _, ids, rows, found = zip(*pieces, strict=True)
        yield table, np.concatenate(ids), np.concatenate(rows), np.concatenate(found)
