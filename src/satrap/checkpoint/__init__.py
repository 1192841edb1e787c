"""A trained state on disk: write it as one snapshot, read it back, notice damage; many of them in a row.

A checkpoint is a folder (or fsspec URL):

```
manifest.json              written last: settings, size and checksums of every file, and its own digest
data-<token>/
    model.safetensors      the network's weights
    optimizer.safetensors  the dense optimizer's tensors
    worker-000.safetensors what a worker needs to go on: random generators, lookups in flight
    table-000.arrow        rows of the first table: id, weights, state (Arrow IPC)
    store.safetensors      what the store needs besides: which rows go next, which ids wait for admission
```

Several shards write a file each, as `table-000.shard-0001.arrow`.

A delta holds in its `table-*.arrow` only the rows that changed since the snapshot before, and in
`deleted.safetensors`, by table, the ids that have no row any more; its manifest names that snapshot and its
id, so that nothing else can take its place. Rows of a table lie in order of (bucket, id), so that a full
snapshot and its deltas are merged as they are read.

A folder without a manifest holds no checkpoint. Saving over an older checkpoint writes new data first,
exchanges the manifest in one step, and only then removes the old data. `Series` keeps the numbered snapshots
of a run, `step-00001000/` and so on, each of them such a folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from satrap.checkpoint.background import Background
    from satrap.checkpoint.series import Series
    from satrap.checkpoint.snapshot import Checkpoint, read_checkpoint, verify, write_checkpoint

__all__ = ["Background", "Checkpoint", "Series", "read_checkpoint", "verify", "write_checkpoint"]

_MODULES = {"Background": "background", "Series": "series"}
"""The others are in `snapshot`. All are loaded on first use: shard servers need none, and no PyTorch."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"satrap.checkpoint.{_MODULES.get(name, 'snapshot')}"), name)
    raise AttributeError(f"module 'satrap.checkpoint' has no attribute {name!r}")
