"""The dense network over several workers: who they are, and how they take a step together."""

from satrap.dense.connected import ConnectedWorkers
from satrap.dense.step import DenseStep, MakeOptimizer, Stepped
from satrap.dense.workers import Workers

__all__ = ["ConnectedWorkers", "DenseStep", "MakeOptimizer", "Stepped", "Workers"]
