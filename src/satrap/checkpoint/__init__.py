"""A trained state on disk: write it as one snapshot, read it back, notice damage.

A checkpoint is a folder (or fsspec URL):

```
manifest.json              written last: settings, and the size and digest of every file
data-<token>/
    model.safetensors      the network's weights
    optimizer.safetensors  the dense optimizer's tensors
    table-000.arrow        rows of the first table: id, weights, state (Arrow IPC)
```

A folder without a manifest holds no checkpoint. Saving over an older checkpoint writes new data first,
exchanges the manifest in one step, and only then removes the old data.
"""

from satrap.checkpoint.snapshot import Checkpoint, read_checkpoint, write_checkpoint

__all__ = ["Checkpoint", "read_checkpoint", "write_checkpoint"]
