"""satrap: deep recommender models whose embedding tables outgrow any one machine."""

from satrap import optim
from satrap.batch import Batch, EmbeddedBatch, Jagged
from satrap.schema import Categorical, Label, Numeric, Schema, Table

__version__ = "0.1.0"
__all__ = ["Batch", "Categorical", "EmbeddedBatch", "Jagged", "Label", "Numeric", "Schema", "Table", "optim"]
