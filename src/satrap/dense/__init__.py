"""The dense network's steps and state, and the group of workers that trains it.

`divided` and `pipelined` are not imported here: the parts of PyTorch that they wrap take a second to import.
"""

from satrap.dense.backend import DenseBackend, DenseState, Pipeline, StepResult
from satrap.dense.connected import ConnectedWorkerGroup, ConnectedWorkers
from satrap.dense.data_parallel import DataParallelBackend
from satrap.dense.mesh import Mesh
from satrap.dense.offload import MakeOptimizer, offloaded
from satrap.dense.precision import LossScale
from satrap.dense.remote import DENSE_TABLE, RemoteStep
from satrap.dense.weights import offload_weights
from satrap.dense.workers import WorkerGroup, Workers

__all__ = [
    "DENSE_TABLE",
    "ConnectedWorkerGroup",
    "ConnectedWorkers",
    "DataParallelBackend",
    "DenseBackend",
    "DenseState",
    "LossScale",
    "MakeOptimizer",
    "Mesh",
    "Pipeline",
    "RemoteStep",
    "StepResult",
    "WorkerGroup",
    "Workers",
    "offload_weights",
    "offloaded",
]


def __dir__() -> list[str]:
    return sorted(__all__)
