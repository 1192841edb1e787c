"""The dense network's step, and the workers that take it together."""

from satrap.dense.connected import ConnectedGroup, ConnectedWorkers
from satrap.dense.remote import DENSE_TABLE, RemoteStep
from satrap.dense.step import DenseStep, MakeOptimizer, Stepped
from satrap.dense.workers import Group, Workers

__all__ = [
    "DENSE_TABLE",
    "ConnectedGroup",
    "ConnectedWorkers",
    "DenseStep",
    "Group",
    "MakeOptimizer",
    "RemoteStep",
    "Stepped",
    "Workers",
]
