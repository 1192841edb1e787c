"""The exchange of processes that train and hold the rows together, without servers.

Each process holds a part of the rows, as set by the `Placement`. Ids travel to their owners, rows back, and
gradients to the owners again, by all-to-all: `CollectiveExchange` over `Ranks`. `TorchRanks` are ranks of
`torch.distributed`.
"""

from satrap.exchange.collective.client import CollectiveExchange
from satrap.exchange.collective.fresh import FreshReplicas
from satrap.exchange.collective.placement import Placement
from satrap.exchange.collective.ranks import Alone, Ranks

__all__ = ["Alone", "CollectiveExchange", "FreshReplicas", "Placement", "Ranks"]
