"""Exports of a trained run for other systems: its network as a PyTorch program, and item vectors.

```python
run = satrap.launch.RunFolder.open("runs/x")
satrap.export.export_network(run, "network.pt2")      # and network.json, which describes inputs and outputs
satrap.export.export_items(run, "items.parquet")      # for a model with towers
```
"""

from satrap.export.items import export_items
from satrap.export.network import export_network

__all__ = ["export_items", "export_network"]


def __dir__() -> list[str]:
    return sorted(__all__)
