"""Sizing of a cluster for a model of any size: bytes, hosts, speed, time and price.

`machines.read` reads the shapes and prices of hosts, `Demand` describes the model's needs, and `plan_cluster`
combines the two.
"""

from satrap.tools.plan.cluster.demand import Demand
from satrap.tools.plan.cluster.machines import Machine, read
from satrap.tools.plan.cluster.plan import ClusterPlan, plan_cluster

__all__ = ["ClusterPlan", "Demand", "Machine", "plan_cluster", "read"]
