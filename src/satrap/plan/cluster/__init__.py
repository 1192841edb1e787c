"""What a model of any size needs of a cluster: bytes, hosts, speed, time and price.

`machines.read` knows the shapes and prices of hosts, `Demand` says what a model asks for, and `plan_cluster`
puts both together.
"""

from satrap.plan.cluster.demand import Demand
from satrap.plan.cluster.machines import Machine, read
from satrap.plan.cluster.plan import ClusterPlan, plan_cluster

__all__ = ["ClusterPlan", "Demand", "Machine", "plan_cluster", "read"]
