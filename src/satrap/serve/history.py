"""What earlier versions had where later ones differ, so that a server can go back to one at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
from torch import nn

from satrap.serve.overlay import Overlay
from satrap.store import Chunk, Shard
from satrap.store.types import Found, Ids

Rows = npt.NDArray[np.float32]


@dataclass(slots=True)
class Earlier:
    """A version that was served: its network, and the rows that the next one changes.

    Args:
        step, version, published: see `Update`.
        network: with its weights.
        rows: (table, ids, their rows, whether they had one) of what has changed so far.
        bytes: memory of all of it.
    """

    step: int
    version: str
    published: float
    network: nn.Module
    rows: list[tuple[str, Ids, Rows, Found]] = field(default_factory=list)
    bytes: int = 0


class History:
    """The versions before the served one, newest last, each with the old values of what came after it.

    Only the thread that scores may change it. While nothing is noted, another thread may read it.

    Args:
        store: has the rows; none are kept of one with a tier, which would be read from the disk.
        keep: most versions.
        most_bytes: most memory; beyond it, the oldest versions are forgotten.
    """

    def __init__(self, store: Shard, *, keep: int, most_bytes: int) -> None:
        self._store, self._most_bytes = store, most_bytes
        self._keep = 0 if store.ahead.useful else keep
        self._versions: list[Earlier] = []
        self._noting = False

    @property
    def steps(self) -> list[int]:
        """The steps of the versions, ascending."""
        return [one.step for one in self._versions]

    @property
    def bytes(self) -> int:
        """Memory of all of it."""
        return sum(one.bytes for one in self._versions)

    def add(self, step: int, version: str, published: float, network: nn.Module) -> nn.Module | None:
        """Add the version that was served until now; return a network that is not needed any more, if any."""
        if not self._keep:
            return network
        size = sum(weights.numel() * weights.element_size() for weights in network.parameters())
        self._versions.append(Earlier(step, version, published, network, bytes=size))
        self._noting = True
        return self._forget()

    def note(self, table: str, ids: Ids) -> None:
        """Keep the rows of ids uint64[n] as they are; they are about to change."""
        if not self._noting:
            return
        rows, found = self._store.peek(table, ids)
        newest = self._versions[-1]
        newest.rows.append((table, ids, rows, found))
        newest.bytes += ids.nbytes + rows.nbytes + found.nbytes
        self._forget()

    def _forget(self) -> nn.Module | None:
        """Forget the oldest versions beyond the limits; return the network of the last one."""
        network = None
        while self._versions and (len(self._versions) > self._keep or self.bytes > self._most_bytes):
            network = self._versions.pop(0).network
        self._noting = bool(self._versions)
        return network

    def back_to(self, step: int) -> tuple[Earlier, Overlay]:
        """Return a version, and what to lay over the rows so that they are those of it."""
        overlay = Overlay(self._store)
        for one in reversed(self._versions):
            for table, ids, rows, found in _by_table(one):
                overlay.load(
                    Chunk(table, ids[found], rows[found], np.empty((int(found.sum()), 0), np.float32))
                )
                overlay.remove(table, ids[~found])
            if one.step == step:
                overlay.seal()
                return one, overlay
        overlay.close()
        raise KeyError(step)

    def cut(self, step: int) -> None:
        """Forget a version and those after it: it is the served one again."""
        self._versions = [one for one in self._versions if one.step < step]
        self._noting = False


def _by_table(version: Earlier) -> Iterator[tuple[str, Ids, Rows, Found]]:
    """Yield the rows of a version, each table at once."""
    for table, pieces in groupby(version.rows, key=lambda piece: piece[0]):
        _, ids, rows, found = zip(*pieces, strict=True)
        yield table, np.concatenate(ids), np.concatenate(rows), np.concatenate(found)
