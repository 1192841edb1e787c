"""From a recipe to a run: the only place that puts data, model, trainer and run folder together."""

from satrap.launch.folder import RunFolder
from satrap.launch.local import InterruptedRunError, Outcome, evaluate, train
from satrap.launch.scoring import predict

__all__ = ["InterruptedRunError", "Outcome", "RunFolder", "evaluate", "predict", "train"]
