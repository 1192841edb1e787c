"""The dense network's steps and states, and the workers that train it together.

`divided` and `pipelined` are imported by who needs them: what they wrap of PyTorch takes a second to import.
"""

from satrap.dense.backend import DenseBackend, DenseState, Pipeline, Stepped
from satrap.dense.connected import ConnectedGroup, ConnectedWorkers
from satrap.dense.data_parallel import DataParallel
from satrap.dense.mesh import Mesh
from satrap.dense.offload import MakeOptimizer, offloaded
from satrap.dense.precision import LossScale
from satrap.dense.remote import DENSE_TABLE, RemoteStep
from satrap.dense.weights import offload_weights
from satrap.dense.workers import Group, Workers

__all__ = [
    "DENSE_TABLE",
    "ConnectedGroup",
    "ConnectedWorkers",
    "DataParallel",
    "DenseBackend",
    "DenseState",
    "Group",
    "LossScale",
    "MakeOptimizer",
    "Mesh",
    "Pipeline",
    "RemoteStep",
    "Stepped",
    "Workers",
    "offload_weights",
    "offloaded",
]


def __dir__() -> list[str]:
    return sorted(__all__)
