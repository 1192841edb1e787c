"""What a process of a mesh needs to train its part of the dense network, and which mesh fits some devices.

The network computes a batch of fake tensors, which have shapes and no numbers, so what is planned may be
larger than this machine. `plan_dense` puts it all together.
"""

from satrap.plan.dense.inputs import Inputs
from satrap.plan.dense.meshes import DensePlan, plan_dense
from satrap.plan.dense.network import Need, Network, Speed

__all__ = ["DensePlan", "Inputs", "Need", "Network", "Speed", "plan_dense"]
