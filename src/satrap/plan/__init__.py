"""Placement of embedding tables among workers, and the cost of a step with it.

`workload.measure` counts the ids that batches look up. `place` chooses a placement for each table on a
`Topology`; `Costs` computes the cost of any placements. `measure` measures the speed of this machine.
"""

from satrap.plan.cost import Cost, Costs
from satrap.plan.planner import place
from satrap.plan.result import Plan
from satrap.plan.topology import Rates, Topology
from satrap.plan.workload import TableLoad, Workload

__all__ = ["Cost", "Costs", "Plan", "Rates", "TableLoad", "Topology", "Workload", "place"]
