"""How a worker's ids reach the rows and how gradients return.

One protocol, `Exchange`; `LocalExchange` keeps the store in this process. A request names, per table
group, the distinct ids of a batch; the answer is one array of rows per group. Requests of one worker are
served in the order they are made: that order *is* the training schedule.
"""

from satrap.exchange.local import LocalExchange
from satrap.exchange.protocol import Cut, Exchange, Request, Snapshot, TableGroup

__all__ = ["Cut", "Exchange", "LocalExchange", "Request", "Snapshot", "TableGroup"]
