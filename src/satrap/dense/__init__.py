"""The dense network's steps and state, and the group of workers that trains it.

`divided` and `pipelined` are not imported here: the parts of PyTorch that they wrap take a second to import.
"""

from satrap.dense.backends.data_parallel import DataParallelBackend
from satrap.dense.backends.parameter_server import DENSE_TABLE, RemoteStep
from satrap.dense.backends.protocol import DenseBackend, DenseState, Pipeline, StepResult
from satrap.dense.comm.torch_workers import ConnectedWorkerGroup, ConnectedWorkers
from satrap.dense.comm.workers import WorkerGroup, Workers
from satrap.dense.compute.precision import LossScale
from satrap.dense.memory.optimizer_offload import MakeOptimizer, offloaded
from satrap.dense.memory.weight_offload import offload_weights
from satrap.settings.mesh import Mesh

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
