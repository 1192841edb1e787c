"""Placement of embedding tables among workers, and the cost of a step with it.

`workload.measure` counts the ids that batches look up. `place` chooses a placement for each table on a
`Topology`; `PlacementCosts` computes the cost of any placements. `measure` measures the speed of this
machine.
"""

from satrap.plan.cost import Cost, PlacementCosts
from satrap.plan.planner import place
from satrap.plan.result import Plan
from satrap.plan.topology import Topology, WorkerRates
from satrap.plan.workload import TableLoad, Workload

__all__ = ["Cost", "PlacementCosts", "Plan", "TableLoad", "Topology", "WorkerRates", "Workload", "place"]
