"""The dense network's step, and the workers that take it together."""

from satrap.dense.connected import ConnectedWorkers
from satrap.dense.remote import DENSE_TABLE, RemoteStep
from satrap.dense.step import DenseStep, MakeOptimizer, Stepped
from satrap.dense.workers import Workers

__all__ = [
    "DENSE_TABLE",
    "ConnectedWorkers",
    "DenseStep",
    "MakeOptimizer",
    "RemoteStep",
    "Stepped",
    "Workers",
]
