"""The dense network's steps and states, and the workers that train it together."""

from satrap.dense.backend import DenseBackend, DenseState, Pipeline, Stepped
from satrap.dense.connected import ConnectedGroup, ConnectedWorkers
from satrap.dense.data_parallel import DataParallel, MakeOptimizer
from satrap.dense.divided import Divided
from satrap.dense.mesh import Mesh
from satrap.dense.pipelined import Pipelined
from satrap.dense.precision import LossScale
from satrap.dense.remote import DENSE_TABLE, RemoteStep
from satrap.dense.workers import Group, Workers

__all__ = [
    "DENSE_TABLE",
    "ConnectedGroup",
    "ConnectedWorkers",
    "DataParallel",
    "DenseBackend",
    "DenseState",
    "Divided",
    "Group",
    "LossScale",
    "MakeOptimizer",
    "Mesh",
    "Pipeline",
    "Pipelined",
    "RemoteStep",
    "Stepped",
    "Workers",
]
