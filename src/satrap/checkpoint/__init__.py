"""Trained states on disk: single checkpoints, and the numbered snapshots of a run.

A checkpoint is a folder (or fsspec URL):

```
manifest.json              written last: settings, size and checksums of every file, and a digest
data-<token>/
    model.safetensors      the network's weights
    optimizer.safetensors  the dense optimizer's tensors
    worker-000.safetensors state of a worker: random generators, lookups in flight
    table-000.arrow        rows of the first table: id, weights, state (Arrow IPC)
    store.safetensors      state of the store: order of eviction, ids that wait for admission
    counts-000.safetensors counts of the ids of a column, from which a feature is made; a delta has the
                           counts of the snapshot before it
```

With several shards, each writes its own file, such as `table-000.shard-0001.arrow`. Each process with a part
of the network also writes its own file: `model.part-0001.safetensors`, whose metadata give the position of
its tensors in the whole tensors.

The `table-*.arrow` files of a delta hold only the rows that changed since the previous snapshot;
`deleted.safetensors` holds, by table, the ids that lost their row. The manifest of a delta has name and id of
the previous snapshot, so that no other snapshot can replace it. Rows of a table are sorted by (bucket, id),
so that a full snapshot and its deltas can be merged while they are read.

A folder without a manifest is not a checkpoint. Saving over an older checkpoint writes the new data, replaces
the manifest atomically, and then removes the old data. `Series` keeps the snapshots of a run, each in such
a folder: `step-00001000/` and so on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from satrap.checkpoint.background import Background
    from satrap.checkpoint.series import Series
    from satrap.checkpoint.snapshot import Checkpoint, read_checkpoint, verify, write_checkpoint

__all__ = ["Background", "Checkpoint", "Series", "read_checkpoint", "verify", "write_checkpoint"]

_MODULES = {"Background": "background", "Series": "series"}
"""Name -> its module, default `snapshot`; imported on first use, as shard servers run without PyTorch."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"satrap.checkpoint.{_MODULES.get(name, 'snapshot')}"), name)
    raise AttributeError(f"module 'satrap.checkpoint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
