"""From a recipe to a run: the only package that combines data, model, trainer and run folder."""

from satrap.launch.folder.outcome import InterruptedRunError, RunOutcome
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import evaluate, predict
from satrap.launch.training import train

__all__ = ["InterruptedRunError", "RunFolder", "RunOutcome", "evaluate", "predict", "train"]
