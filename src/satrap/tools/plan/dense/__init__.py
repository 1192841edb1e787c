"""Resource needs of a process in a mesh that trains the dense network, and the mesh that fits some devices.

The network runs on fake tensors, which have shapes but no data, so a planned network may be larger than this
machine. `plan_dense` is the entry point.
"""

from satrap.tools.plan.dense.inputs import Inputs
from satrap.tools.plan.dense.meshes import DensePlan, plan_dense
from satrap.tools.plan.dense.network import Need, NetworkSpec, Speed

__all__ = ["DensePlan", "Inputs", "Need", "NetworkSpec", "Speed", "plan_dense"]
