"""The training loop and its parts.

Users create a `Trainer`. It trains a `TrainingState` in a `Loop` by a `Schedule`, and scores with a
`Predictor`. `Snapshots` saves the state and resumes from it; a `Publisher` publishes it. An `Observer`
follows the loop's progress.
"""

from satrap.settings.ranking import Ranking
from satrap.settings.saving import Checkpointing, Publishing
from satrap.settings.training import TrainingOptions
from satrap.train.predictor import Predictor
from satrap.train.progress.observer import Observer, Progress, Result
from satrap.train.schedule import MODES, lookahead
from satrap.train.trainer import Trainer
from satrap.train.worker_context import WorkerContext

__all__ = [
    "MODES",
    "Checkpointing",
    "Observer",
    "Predictor",
    "Progress",
    "Publishing",
    "Ranking",
    "Result",
    "Trainer",
    "TrainingOptions",
    "WorkerContext",
    "lookahead",
]


def __dir__() -> list[str]:
    return sorted(__all__)
