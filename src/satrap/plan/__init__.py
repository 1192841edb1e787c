"""Where tables should live among workers that hold them together, and what a step then costs.

`workload.measure` counts what batches ask of tables. `place` chooses a placement for each table on a
`Topology`; `Costs` says what any placements cost. `measure` measures the speeds of this machine.
"""

from satrap.plan.cost import Cost, Costs
from satrap.plan.planner import place
from satrap.plan.result import Plan
from satrap.plan.topology import Rates, Topology
from satrap.plan.workload import TableLoad, Workload

__all__ = ["Cost", "Costs", "Plan", "Rates", "TableLoad", "Topology", "Workload", "place"]
