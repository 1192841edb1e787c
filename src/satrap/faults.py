"""Named fault points: places in the code where a test can make something go wrong, see `tests/faults.py`.

Points in use: `disk.create`, `disk.write`, `disk.sync`, `disk.sync_folder`, `disk.make_folder`,
`disk.link`, `disk.replace`, `disk.remove`, `disk.list` and `disk.read` before each call to a file system;
`checkpoint.data_written`, `checkpoint.committed` and `checkpoint.pruned` between the phases of a save;
`shard.chunk` before a shard writes or loads some rows of a snapshot, `shard.written` after its last file;
`journal.write` and `journal.written` around each write to a journal; in a move of rows `shard.export` before
a shard reads some rows, `shard.load` after it has loaded some, `shard.map` as it has taken a map, and at a
worker `move.copied`, `move.mapped` after each shard's answer, and `move.adopt`.
"""

from collections.abc import Callable

listener: Callable[[str], None] | None = None
"""What a test wants called at every point."""


def hit(point: str) -> None:
    """Pass a named point; does nothing unless a test listens."""
    if listener is not None:
        listener(point)
