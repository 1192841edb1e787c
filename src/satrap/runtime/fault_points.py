"""Named fault points: places in the code where a test can inject a failure, see `tests/faults.py`.

Points in use: `disk.create`, `disk.write`, `disk.sync`, `disk.sync_folder`, `disk.make_folder`,
`disk.link`, `disk.replace`, `disk.remove`, `disk.list` and `disk.read` before each call to a file system;
`checkpoint.data_written`, `checkpoint.committed` and `checkpoint.pruned` between the phases of a save;
`shard.chunk` before a shard writes or loads some rows of a snapshot, `shard.written` after its last file;
`journal.write` and `journal.written` around each write to a journal. During a move of rows: `shard.export`
before a shard reads some rows, `shard.load` after it has loaded some, `shard.map` once it has accepted a
map; at a worker `move.copied`, `move.mapped` after each shard's reply, and `move.adopt`.
"""

from collections.abc import Callable

listener: Callable[[str], None] | None = None
"""Called at every fault point; set by a test."""


def hit(point: str) -> None:
    """Reach a named fault point; does nothing unless a test has set `listener`."""
    if listener is not None:
        listener(point)
