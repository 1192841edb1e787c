"""The lines of the comparison: two sides with the same network, samples and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """Two sides that are compared.

    Args:
        name: for `--lines`.
        text: of the table.
        satrap, peer: sides, see `benchmarks.peers.rank.side_of`.
        dim: width of the rows.
        tower: network, "tiny" or "dlrm"; also of sides without one.
        world: number of processes that train.
    """

    name: str
    text: str
    satrap: str
    peer: str
    dim: int
    tower: str = "tiny"
    world: int = 1

    def options(self, side: str) -> dict[str, Any]:
        """Return what `benchmarks.peers.sides.running` needs to know of this line."""
        own = {"side": side, "dim": self.dim, "tower": self.tower, "world": self.world}
        return own | {"delay": 0, "rate": "", "seed": 0}


def _lines() -> Iterator[Line]:
    for tower, dims in (("tiny", (16, 64)), ("dlrm", (16,))):
        for dim in dims:
            for world in (1, 2):
                text = f"TorchRec, {tower} tower, dim {dim}, {world} worker{'s' * (world > 1)}"
                yield Line(
                    f"torchrec-{tower}-{dim}-{world}", text, "collective", "torchrec", dim, tower, world
                )
    for dim in (16, 64, 128):
        text = f"FBGEMM's CPU tables, lookup and update alone, dim {dim}"
        yield Line(f"fbgemm-tables-{dim}", text, "tables-store", "tables-fbgemm", dim)
    for tower, dims in (("tiny", (16, 64, 128)), ("dlrm", (16,))):
        for dim in dims:
            text = f"FBGEMM's CPU tables in a plain loop, {tower} tower, dim {dim}"
            yield Line(f"fbgemm-{tower}-{dim}", text, "local", "loop-fbgemm", dim, tower)
    for tower in ("tiny", "dlrm"):
        text = f"`nn.EmbeddingBag` in a plain loop, element-wise Adagrad, {tower} tower, dim 16"
        yield Line(f"pytorch-{tower}-16", text, "local-adagrad", "loop-pytorch", 16, tower)
    for dim in (16, 64):
        text = f"the store's own calls and the network in a plain loop, tiny tower, dim {dim}"
        yield Line(f"store-tiny-{dim}", text, "local", "loop-store", dim)
    for world, peer in ((1, "local"), (2, "collective")):
        holders = "one process" if world == 1 else "2 workers that hold the rows"
        more = "s" * (world > 1)
        text = f"{holders}, for {world} worker{more} and {world} shard server{more}, tiny tower, dim 16"
        yield Line(f"servers-tiny-16-{world}", text, "servers", peer, 16, world=world)


LINES = {line.name: line for line in _lines()}

PERSIA = {
    f"persia-{tower}-{dim}": (tower, dim)
    for tower, dim in (("tiny", 16), ("tiny", 64), ("dlrm", 16), ("dlrm", 64))
}
"""Lines against recorded figures: tower and width, on the workload of `benchmarks.persia`."""
