"""The one training loop and what it is made of.

`Trainer` owns the model, the exchange and the schedule; `lookahead` is the schedule; `PlateauControl`
drops the learning rate and stops; `Observer` is how progress leaves the loop.
"""

from satrap.train.observer import Observer, Progress, Result
from satrap.train.saving import Checkpointing
from satrap.train.schedule import MODES, lookahead
from satrap.train.trainer import Trainer

__all__ = ["MODES", "Checkpointing", "Observer", "Progress", "Result", "Trainer", "lookahead"]
